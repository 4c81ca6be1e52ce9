/* rollout_evidence.h — `kvasir rollout gates|samples|drill`: what a rollout's gates rest on. */
#ifndef KV_ROLLOUT_EVIDENCE_H
#define KV_ROLLOUT_EVIDENCE_H

#include "console/commands/cli.h"

bool kv_rollout_is_evidence(const char *verb);
int kv_rollout_evidence(int argc, char **argv, const struct kv_cli *cli); /* argv as of kv_cmd_rollout */

#endif
