/* fixture_run.h — runs one contract fixture file: the valid object, then each one-field mutation of it. */
#ifndef KV_FIXTURE_RUN_H
#define KV_FIXTURE_RUN_H

#include "runtime/status.h"

#include <jansson.h>

/* out: {"section","accepted":n,"rejected":n,"wrong":[{"path","value","expected","got","message"}],"reasons":n}; the caller owns it.
 * accepted counts valid objects that passed, rejected the mutations refused with the reason they name, reasons the distinct ones. A mutation is
 * {"path":"a.b.0","value":…,"reason":"CODE"}; without "value" the field is removed. The section is the file's name without folder and ".json". */
enum kv_status kv_fixture_run_file(const char *file, json_t **out, struct kv_error *err);

#endif
