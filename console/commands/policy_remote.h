/* policy_remote.h — kvasir policy's verbs on a server: versions, their lives, differences, replay. */
#ifndef KV_POLICY_REMOTE_H
#define KV_POLICY_REMOTE_H

#include "console/client.h"

/* argv[1] is the verb. KV_EXIT_USAGE, having printed nothing, when it is none or its arguments do not fit. */
int kv_policy_remote(int argc, char **argv, const struct kv_cli *cli);
extern const char kv_policy_remote_usage[];

#endif
