/* receipts_offline.c — kvasir receipts verify --state DIR. */
#include "console/commands/receipts_offline.h"

#include "console/commands/offline.h"
#include "console/output.h"
#include "controller/store/store.h"

#include <stdio.h>
#include <stdlib.h>

int kv_receipts_verify_directory(const char *dir, const char *key_file, const struct kv_cli *cli)
{
    struct kv_verify_result v;
    struct kv_error err = {0};
    char head[65];
    if (kv_store_verify_offline(dir, key_file, &v, &err) != KV_OK) {
        kv_offline_complain("receipts verify", &err);
        return KV_EXIT_REFUSED;
    }
    kv_hex(v.head, 32, head);
    json_t *o = json_pack("{s:b, s:I, s:I, s:I, s:I, s:s}", "verified", v.verified, "rows", (json_int_t)v.rows, "signed_rows", (json_int_t)v.signed_rows, "roots", (json_int_t)v.roots,
                          "sealed", (json_int_t)v.sealed, "head", head);
    if (!v.verified) {
        json_object_set_new(o, "at", json_integer((json_int_t)v.at));
        json_object_set_new(o, "reason", json_string(kv_status_name(v.reason)));
        json_object_set_new(o, "detail", json_string(v.detail));
    }
    if (cli->json) kv_output_json(o, JSON_INDENT(2)), putchar('\n');
    else if (v.verified) printf("verified: %llu receipts, %llu under a signed head; head %s\n", (unsigned long long)v.rows, (unsigned long long)v.signed_rows, head);
    else printf("not verified: receipt %llu: %s (%s)\n", (unsigned long long)v.at, v.detail, kv_status_name(v.reason));
    json_decref(o);
    return v.verified ? KV_EXIT_DONE : KV_EXIT_REFUSED;
}
