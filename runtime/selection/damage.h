/* damage.h — rows whose keys are no numbers: out of every index, in every support.
 *
 * One such key would turn a sum, a mean or a centroid into no number and hide itself and its neighbours; and a head that leaves the row out would
 * answer with a number where dense attention has none. So every method of the table is handed those keys as zeros while it builds, appends and
 * ranks, and the rows are set in the support it answers with; its estimate of the omitted mass, where it has one, is then no number, which no gate
 * accepts. Allocates in build and append where a key is damaged, and only there. */
#ifndef KV_DAMAGE_H
#define KV_DAMAGE_H

#include "runtime/selection/selector.h"

/* Guards m: its functions take instances of kv_damage_create from then on, which `create` must call with the method as it was. */
void kv_damage_guard(struct kv_selector_method *m);
enum kv_status kv_damage_create(const struct kv_selector_method *method, const struct kv_params *p, int32_t d_head, int32_t group, int32_t n_rows_max,
                                uint64_t seed, struct kv_selector **out, struct kv_error *err);

#endif
