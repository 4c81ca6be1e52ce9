/* config_paths.h — where the model and the state are when no setting says so, and who else may reach what the settings name. */
#ifndef KV_CONFIG_PATHS_H
#define KV_CONFIG_PATHS_H

#include "controller/config.h"

/* config->model, else the small model: models/ here, beside the program's folder, or in its installed share/kvasir/models. */
enum kv_status kv_config_model_path(const struct kv_config *c, char *out, size_t cap, struct kv_error *err);
/* config->state, else build/state in a checkout, else $XDG_STATE_HOME/kvasir or ~/.local/state/kvasir. It need not be there. */
enum kv_status kv_config_state_dir(const struct kv_config *c, char *out, size_t cap, struct kv_error *err);
enum kv_status kv_config_make_parents(const char *path, struct kv_error *err); /* for a start; who only looks makes nothing */
/* State, disk tier and extents: folders of their own, which nobody else may write to. BAD_ARGUMENT with what mends it; what is not there yet is fine. */
enum kv_status kv_config_check_folders(const struct kv_config *c, const char *state, struct kv_error *err);
/* The next file of a secret that every user of this machine may read, from *at on; NULL: no more. *key: the setting that names it. */
const char *kv_config_open_secret(const struct kv_config *c, int *at, const char **key);

#endif
