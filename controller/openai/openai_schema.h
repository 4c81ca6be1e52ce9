/* openai_schema.h — response_format: a JSON schema as the nodes that constrain an answer. */
#ifndef KV_OPENAI_SCHEMA_H
#define KV_OPENAI_SCHEMA_H

#include "runtime/kvasir.h"

#include <jansson.h>

struct kv_openai_schema;
/* format: {"type":"text"|"json_object"|"json_schema","json_schema":{"schema":…}}. *out NULL for text. UNSUPPORTED names the keyword that is not
 * supported and where it stands; BAD_ARGUMENT what is malformed or beyond a limit. */
enum kv_status kv_openai_schema_read(json_t *format, struct kv_openai_schema **out, struct kv_error *err);
const struct kv_schema *kv_openai_schema_of(const struct kv_openai_schema *s);
void kv_openai_schema_free(struct kv_openai_schema *s);

#endif
