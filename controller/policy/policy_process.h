/* policy_process.h — checking a policy in a process of its own, so that nothing it does to the interpreter touches the server. Any thread. */
#ifndef KV_POLICY_PROCESS_H
#define KV_POLICY_PROCESS_H

#include "controller/policy/policy_host.h"

/* Starts `program --check-policy KIND`, gives it the source on standard input and takes its verdict. The process may use 10 s of processor time and 256 MiB. */
enum kv_status kv_policy_check_apart(const char *program, enum kv_policy_kind kind, const char *source, size_t n, struct kv_error *err);
/* The other side: what the program does for --check-policy. Returns its exit status. */
int kv_policy_check_main(const char *kind);

#endif
