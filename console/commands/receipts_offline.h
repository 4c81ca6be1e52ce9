/* receipts_offline.h — verifies a stopped daemon's state directory. */
#ifndef KV_RECEIPTS_OFFLINE_H
#define KV_RECEIPTS_OFFLINE_H

#include "console/commands/cli.h"

int kv_receipts_verify_directory(const char *dir, const char *key_file, const struct kv_cli *cli); /* an exit status */

#endif
