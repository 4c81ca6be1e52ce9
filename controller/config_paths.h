/* config_paths.h — where the model and the state are when no setting says so. */
#ifndef KV_CONFIG_PATHS_H
#define KV_CONFIG_PATHS_H

#include "controller/config.h"

/* config->model, else the small model: models/ here, beside the program's folder, or in its installed share/kvasir/models. */
enum kv_status kv_config_model_path(const struct kv_config *c, char *out, size_t cap, struct kv_error *err);
/* config->state, else build/state in a checkout, else $XDG_STATE_HOME/kvasir or ~/.local/state/kvasir. Parents are made. */
enum kv_status kv_config_state_dir(const struct kv_config *c, char *out, size_t cap, struct kv_error *err);

#endif
