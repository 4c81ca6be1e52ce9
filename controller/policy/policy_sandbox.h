/* policy_sandbox.h — a Lua state in which a policy can neither escape, nor hang, nor eat memory.
 *
 * What bounds it: a hook every 100 instructions (instruction budget, deadline); an allocator with caps on live bytes, bytes per call, bytes of one
 * string and number of emergency collections, which also looks at the deadline; no library function that loops in C over more than a few KiB
 * without charging the budget; no metatables, hence no __gc; no coroutines; a pcall that rethrows once the call is killed.
 * The deadline is thread CPU time: a policy cannot block, so wall time beyond it is the machine's doing, and only far beyond it the call ends. */
#ifndef KV_POLICY_SANDBOX_H
#define KV_POLICY_SANDBOX_H

#include "runtime/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct lua_State;
struct kv_sandbox {
    struct lua_State *lua;
    size_t live, total;          /* bytes; total: of this call */
    uint64_t instructions, allocations;
    int64_t wall_start_us, cpu_start_us, deadline_us;
    int refusals;
    bool running;                /* single strings and blocks are capped while the policy's own code runs */
    const char *killed;          /* why; NULL while alive. Once set it stays: the state is not used again */
    enum kv_status killed_status;
    bool preempted;              /* it was killed while others had the processor: wall time ran out, its own did not */
};

enum kv_status kv_sandbox_open(struct kv_sandbox *s, struct kv_error *err);
void kv_sandbox_close(struct kv_sandbox *s);
/* Runs fn(L) protected and bounded, with arg as a light userdata at index 1. POLICY_BUDGET when a limit was met, POLICY_FAULT when an
 * error was raised; the message says where. */
enum kv_status kv_sandbox_run(struct kv_sandbox *s, int (*fn)(struct lua_State *L), void *arg, struct kv_error *err);
/* The same for a C closure that the registry holds under ref. */
enum kv_status kv_sandbox_call(struct kv_sandbox *s, int ref, void *arg, struct kv_error *err);

#endif
