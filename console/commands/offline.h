/* offline.h — what the commands that load a model themselves share: the model, an engine, prompts from a file. */
#ifndef KV_OFFLINE_H
#define KV_OFFLINE_H

#include "runtime/kvasir.h"

#include <jansson.h>

struct kv_prompt {
    int32_t *ids, n, steps; /* steps 0: the command's default */
};

/* Prints "kvasir COMMAND: message (REASON)" and the hint. */
void kv_offline_complain(const char *command, const struct kv_error *err);
enum kv_status kv_offline_model(const char *path, struct kv_model **out, struct kv_error *err);
/* A file of JSON, "-" for standard input; flags of jansson. FILE_UNREADABLE, or BAD_JSON with the line. */
enum kv_status kv_offline_json(const char *file, size_t flags, json_t **out, struct kv_error *err);
/* Ids of a text, BOS in front where the model wants one. */
enum kv_status kv_offline_ids(const struct kv_model *m, const char *text, bool special, int32_t **ids, int32_t *n, struct kv_error *err);
/* [{"ids":[…]}|{"text":"…","special":bool}, each with "steps"]. *out is freed by kv_offline_prompts_free. */
enum kv_status kv_offline_prompts(const struct kv_model *m, const char *file, struct kv_prompt **out, size_t *n, struct kv_error *err);
void kv_offline_prompts_free(struct kv_prompt *p, size_t n);
/* Sets one "key=value". */
enum kv_status kv_offline_param(const struct kv_pipeline *p, const char *text, struct kv_params *params, struct kv_error *err);
/* Installs pipeline NAME with "key=value" parameters as candidate 1 at epoch 1; nothing for NULL or "resident". */
enum kv_status kv_offline_install(struct kv_engine *e, const char *name, char *const *params, int n_params, struct kv_error *err);

#endif
