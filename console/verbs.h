/* verbs.h — controller/verbs.def as rows: the consoles' and the command line's one source of what an operator can do. */
#ifndef KV_VERBS_H
#define KV_VERBS_H

enum kv_verb_danger { KV_VERB_SAFE, KV_VERB_ASK, KV_VERB_DANGER };

struct kv_verb {
    const char *name, *group, *method, *route, *right;
    enum kv_verb_danger danger;
    const char *stages;
    char key;
    const char *help;
};

static const struct kv_verb kv_verbs[] = {
#define KV_VERB(name, group, method, route, right, danger, stages, key, help)                                                  \
    {#name, #group, #method, route, #right, KV_VERB_##danger, stages, key, help},
#include "controller/verbs.def"
#undef KV_VERB
};
enum { KV_N_VERBS = sizeof kv_verbs / sizeof *kv_verbs };

#endif
