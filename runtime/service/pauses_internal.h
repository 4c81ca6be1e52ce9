/* pauses_internal.h — the inside of struct kv_pauses, shared by pauses.c (held, resumed, given up), pauses_decide.c (what becomes of their rows),
 * pauses_move.c (rows out and back) and pauses_control.c (other threads). The list is changed under the engine's lock, so that others may read it; all
 * else belongs to the decode thread. */
#ifndef KV_PAUSES_INTERNAL_H
#define KV_PAUSES_INTERNAL_H

#include "runtime/service/engine.h"

struct kv_paused {
    struct kv_pause_view view;
    int32_t *tokens;
    struct kv_cache cache;       /* holds blocks while the rows are in the arena */
    uint64_t reserved_bytes;
    uint8_t **swap;              /* [n_slabs] of the arena beside the engine's */
    uint64_t *sum;               /* [n_slabs] */
    size_t n_slabs, moved;
    struct kv_sequence *into;    /* resumes, and waits for its rows */
    bool forget, on_disk;
    bool dropped;                /* its session was, while it ran: nothing of it is saved */
    struct kv_credit_ticket credit; /* while rows move beside the arena; of rows that go to disk the save holds it */
};

struct kv_pause_want { /* of a thread that asks for a pause; lives on its stack */
    const char *tenant, *session;
    enum kv_pause_action action;
    enum kv_status status;
    struct kv_pause_view *view;
    bool done;
    struct kv_pause_want *next;
};

struct kv_pauses {
    struct kv_paused *list[KV_PAUSES_MAX];
    int32_t n;
    struct kv_pause_want *wants;
    struct kv_arena *swap; /* rows that moved out; its pages stay, so that no movement waits for fresh ones or for their return */
    double bytes_per_s; /* measured, of a copy */
    uint64_t cap_bytes, moved_bytes; /* of this iteration: what may move, and what did */
    int64_t moved_ns;                /* when something moved last, or nothing had to */
    int64_t revised_us;
    uint64_t tried_at; /* kv_credits_returns when rows that wait for credits were tried last */
};

/* pauses.c */
int32_t kv_paused_find(const struct kv_pauses *ps, uint64_t id); /* -1: not there */
void kv_paused_move(struct kv_engine *e, struct kv_paused *p, enum kv_session_state to);
void kv_paused_drop_rows(struct kv_engine *e, struct kv_paused *p);
void kv_paused_drop_swap(struct kv_pauses *ps, struct kv_paused *p);
void kv_paused_remove_at(struct kv_engine *e, int32_t i);
void kv_paused_take_over(struct kv_engine *e, struct kv_paused *p); /* the blocks become those of who resumes */

/* pauses_decide.c */
void kv_paused_costs(const struct kv_engine *e, struct kv_pause_costs *c);
void kv_paused_note_waste(struct kv_engine *e, struct kv_paused *p, const struct kv_pause_costs *c, const struct kv_pause_waste *w);
void kv_paused_revise(struct kv_engine *e, int64_t now_us);
int64_t kv_paused_left_us(const struct kv_engine *e, const struct kv_paused *p, int64_t now_us); /* until it expires, 0 when it has; INT64_MAX: never */

/* pauses_move.c */
double kv_paused_copy_rate(void); /* bytes a second, measured now */
void kv_paused_apply(struct kv_engine *e, struct kv_paused *p, enum kv_pause_action a);
void kv_paused_discard(struct kv_engine *e, struct kv_paused *p);
bool kv_paused_swap_fits(const struct kv_pauses *ps, const struct kv_paused *p);
bool kv_paused_start_swap(struct kv_engine *e, struct kv_paused *p); /* false: there is no room for it, nothing changed */
void kv_paused_give_credits(struct kv_engine *e, struct kv_paused *p);
void kv_paused_start_in(struct kv_engine *e, struct kv_paused *p); /* slab by slab, once there are credits for it; computed again where there never are */
bool kv_paused_waits(const struct kv_paused *p); /* for those credits */
bool kv_paused_moves(const struct kv_paused *p); /* slab by slab, within an iteration's cap */
void kv_paused_move_some(struct kv_engine *e);
void kv_paused_go_on(struct kv_engine *e, struct kv_paused *p); /* the rows are back, or are not to be had */

#endif
