/* store.h — the state directory: SQLite database, receipt chain and its signed heads, one writer thread.
 *
 * Files: lock, kvasir.db (+ -wal, -shm), receipts.heads (signed heads), receipts.key (0600), rollback.intent. The writer thread is the only
 * writer; it commits groups and checkpoints while no query runs. Queries use one read-only connection and never checkpoint. */
#ifndef KV_STORE_H
#define KV_STORE_H

#include "controller/release/drill.h"
#include "controller/policy/policy_host.h"
#include "controller/policy/policy_life.h"
#include "controller/store/receipts.h"
#include "controller/release/release.h"

struct kv_store;

struct kv_store_config {
    const char *dir;          /* made with mode 0700 when absent */
    const char *key_file;     /* HMAC key of the heads; NULL: DIR/receipts.key, made when absent */
    int32_t queue_rows;       /* bounded queue of receipts; 0: 16384 */
    int32_t busy_timeout_ms;  /* of queries; 0: 2000 */
    void (*on_row)(void *ctx, const struct kv_receipt_row *row); /* writer thread, after the commit; may be NULL; must not call the store */
    void *on_row_ctx;
};

/* STORE_LOCKED, STORE_NEWER, STORE_CORRUPT (not a database), FILE_UNREADABLE, NO_SPACE, IO_ERROR: each with a hint. */
enum kv_status kv_store_open(const struct kv_store_config *c, struct kv_store **out, struct kv_error *err);
void kv_store_close(struct kv_store *s); /* writes what is queued, signs the head */
const char *kv_store_dir(const struct kv_store *s);
/* False: the chain's end or its signed head did not verify at open; err says where. The control thread then starts from the baseline. */
bool kv_store_trusted(const struct kv_store *s, struct kv_error *err);

/* --- receipts in. Never blocks, never allocates. */
struct kv_receipt_sink kv_store_sink(struct kv_store *s); /* one producer: the decode thread */
bool kv_store_post(struct kv_store *s, const struct kv_receipt *r); /* any other thread */
/* The same, and waits until it is durable. False: it is not after wait_ms, or at once where receipts cannot be written; it stays queued, unless the queue was full. */
bool kv_store_post_settled(struct kv_store *s, const struct kv_receipt *r, int32_t wait_ms);

struct kv_store_health {
    bool ok;                  /* the last commit succeeded, none has been in work for three seconds, and the queue is below half */
    int64_t failing_since_us; /* CLOCK_MONOTONIC; 0: not failing */
    enum kv_status reason;
    uint64_t receipts, queued, refused, bytes, commits; /* refused: emits answered false */
    int64_t last_commit_us;   /* duration */
    uint8_t head[32];
};
void kv_store_health(struct kv_store *s, struct kv_store_health *out);
/* Waits until what the decode thread emitted before the call is durable. False: it is not, because receipts cannot be written or wait for longer than five
 * seconds. Costs no commit of its own. Any thread. */
bool kv_store_settle(struct kv_store *s);
/* Waits until everything posted before the call is durable. */
enum kv_status kv_store_flush(struct kv_store *s, struct kv_error *err);

/* --- records: each call is one durable transaction with its receipt, or STORE_UNAVAILABLE with nothing written. Not the decode thread.
 * receipt (may be NULL) gets the row's id. */
enum kv_status kv_store_put_rollout(struct kv_store *s, const struct kv_rollout *r, const char *actor, const char *detail, uint64_t *receipt, struct kv_error *err);
/* The rollout's new state together with the transition that made it. */
enum kv_status kv_store_put_transition(struct kv_store *s, const struct kv_rollout *after, struct kv_transition *t, struct kv_error *err);
enum kv_status kv_store_put_gates(struct kv_store *s, const struct kv_rollout *r, const struct kv_gate_result *g, int32_t n, int64_t at_us, struct kv_error *err);
struct kv_decision {
    int64_t at_us;
    uint64_t rollout, epoch;
    enum kv_policy_kind kind;
    char version[65], action[32], reason[160];
    enum kv_status status;    /* OK, or the policy's fault */
    const char *input;        /* what was asked, as JSON (policy_replay.h); NULL: not kept */
};
enum kv_status kv_store_put_decision(struct kv_store *s, const struct kv_decision *d, struct kv_error *err);
/* Makes this version the active one of its kind. */
enum kv_status kv_store_put_policy(struct kv_store *s, const struct kv_script *p, const char *actor, int64_t at_us, struct kv_error *err);
/* --- policy versions (store_policies.c). Stored as DRAFT unless this version is there already. */
enum kv_status kv_store_submit_policy(struct kv_store *s, const struct kv_script *p, const char *actor, int64_t at_us, struct kv_error *err);
/* CONFLICT when the version's state does not lead there (RETIRED leads to STAGED only if it was ACTIVE once). */
enum kv_status kv_store_move_policy(struct kv_store *s, enum kv_policy_kind kind, const char *version, enum kv_policy_state to, const char *actor, const char *detail,
                                    int64_t at_us, struct kv_error *err);
struct kv_policy_version {
    enum kv_policy_kind kind;
    char version[65], name[64], author[64], actor[64], detail[160]; /* author: who submitted it; actor, detail: of the last move */
    enum kv_policy_state state;
    bool was_active;
    int64_t created_us, state_us;
    uint64_t receipt;          /* of the last move */
};
/* Newest move first. *n: in cap, out count. */
enum kv_status kv_store_policy_versions(struct kv_store *s, enum kv_policy_kind kind, struct kv_policy_version *out, int32_t *n, struct kv_error *err);
/* version: its first six hex digits or more. NOT_FOUND, or CONFLICT when more than one begins so. source may be NULL; free(*source). */
enum kv_status kv_store_policy_version(struct kv_store *s, enum kv_policy_kind kind, const char *version, struct kv_policy_version *out, char **source, size_t *n,
                                       struct kv_error *err);
struct kv_recorded_decision {
    uint64_t receipt, rollout;
    int64_t at_us;
    char action[32], reason[160];
    enum kv_status status;
    char *input;               /* free */
};
/* The last *n release decisions whose question was kept, newest first. */
enum kv_status kv_store_recorded_decisions(struct kv_store *s, struct kv_recorded_decision *out, int32_t *n, struct kv_error *err);

/* --- drills (store_drills.c). The rollout must be stored; d->receipt gets the row's id. */
enum kv_status kv_store_put_drill(struct kv_store *s, const struct kv_rollout *r, struct kv_drill_result *d, struct kv_error *err);
/* The last result of each drill of a manifest; at_us 0: it never ran. */
enum kv_status kv_store_load_drills(struct kv_store *s, const uint8_t manifest[32], struct kv_drill_result out[KV_DRILLS], struct kv_error *err);

/* --- tokens (store_tokens.c): only their SHA-256 is kept */
struct kv_stored_token {
    char name[64], tenant[64], rights[64], creator[64]; /* rights: names, separated by blanks */
    uint8_t sha256[32];
    int64_t created_us, expires_us, revoked_us;         /* CLOCK_REALTIME; 0: never, not */
};
enum { KV_MAX_TOKENS = 4096 }; /* in force at once */
/* CONFLICT when a token of that name is in force; CAPACITY. */
enum kv_status kv_store_put_token(struct kv_store *s, const struct kv_stored_token *t, struct kv_error *err);
/* NOT_FOUND when no token of that name is in force. */
enum kv_status kv_store_revoke_token(struct kv_store *s, const char *name, const char *actor, int64_t at_us, struct kv_error *err);
/* Those in force first, then revoked and expired ones; of each the newest first. *n: in cap, out count. */
enum kv_status kv_store_tokens(struct kv_store *s, int64_t now_us, struct kv_stored_token *out, int32_t *n, struct kv_error *err);
#define KV_TOKEN_PREFIX "kv_"
/* A new secret (the prefix and 43 letters) into out, its SHA-256 into t. */
enum kv_status kv_token_make(struct kv_stored_token *t, char out[64], struct kv_error *err);

/* Appends one receipt and waits for it. */
enum kv_status kv_store_put_receipt(struct kv_store *s, const struct kv_receipt *r, uint64_t *id, struct kv_error *err);

/* A setting that outlives the process, with its receipt. */
enum kv_status kv_store_put_setting(struct kv_store *s, const char *name, int64_t value, const struct kv_receipt *r, struct kv_error *err);

/* --- what a restart needs */
enum kv_status kv_store_load_setting(struct kv_store *s, const char *name, int64_t *value, struct kv_error *err); /* 0 when it was never set */
enum kv_status kv_store_load_rollouts(struct kv_store *s, struct kv_rollout **out, int32_t *n, struct kv_error *err); /* newest last; free(*out) */
enum kv_status kv_store_load_policy(struct kv_store *s, enum kv_policy_kind kind, char **source, size_t *n, int64_t *activated_us, struct kv_error *err); /* NOT_FOUND; free */
/* No request of an earlier process had a higher id, whether its receipts were written or not. */
enum kv_status kv_store_last_request(struct kv_store *s, uint64_t *request, struct kv_error *err);
enum kv_status kv_store_last_ids(struct kv_store *s, uint64_t *rollout, uint64_t *epoch, struct kv_error *err);
enum kv_status kv_store_load_gates(struct kv_store *s, uint64_t rollout, struct kv_gate_result *out, int32_t *n, struct kv_error *err); /* the last evaluation */

/* --- queries; any thread */
struct kv_receipt_filter { /* 0 or NULL: any */
    const char *kind, *reason, *tenant, *session;
    const char *trace;        /* 32 hexadecimal digits: of the requests of that trace */
    const char *digest;       /* hexadecimal, the first six digits or more: of a chunk, a policy version or a manifest */
    int64_t since_us, until_us;
    uint64_t request, rollout, epoch;
    uint64_t after, before;   /* ids, exclusive */
    bool only_failures;       /* rows whose reason is not OK and whose kind is a fact about a failure */
    bool oldest_first;
    int32_t limit;            /* 1 … 1000 */
};
/* rows: at least limit long. *next: the id to pass as before (or after, oldest first) for the next page; 0: no more. */
enum kv_status kv_store_find(struct kv_store *s, const struct kv_receipt_filter *f, struct kv_receipt_row *rows, int32_t *n, uint64_t *next, struct kv_error *err);
enum kv_status kv_store_get(struct kv_store *s, uint64_t id, struct kv_receipt_row *row, struct kv_error *err);
struct kv_rests_on {
    char kind[16], id[72], title[160]; /* kind: manifest, transition, gate, policy, receipt */
};
#define KV_MAX_RESTS_ON 16
enum kv_status kv_store_rests_on(struct kv_store *s, const struct kv_receipt_row *row, struct kv_rests_on *out, int32_t *n, struct kv_error *err);
enum kv_status kv_store_transitions(struct kv_store *s, uint64_t rollout, struct kv_transition *out, int32_t cap, int32_t *n, struct kv_error *err); /* oldest first */

struct kv_verify_result {
    bool verified;
    uint64_t rows, signed_rows; /* rows covered by the last signed head */
    uint64_t roots;             /* requests whose root was recomputed */
    uint64_t sealed;            /* rows up to here were removed by retention; 0: none */
    uint64_t at;                /* first row that does not verify; 0 when verified */
    uint8_t head[32];
    enum kv_status reason;
    char detail[200];
};
struct kv_request_root {
    uint64_t receipt, leaves; /* receipt: the request's REQUEST row; 0: it has not ended */
    uint8_t root[32];
};
/* Of the request a receipt belongs to. */
enum kv_status kv_store_request_root(struct kv_store *s, const struct kv_receipt_row *row, struct kv_request_root *out, struct kv_error *err);

/* Seals and removes receipts older than before_us: at most 20000 at once, never the last 1000, and up to a row that a signed head covers. Records its own
 * deletion as a receipt. */
enum kv_status kv_store_retain(struct kv_store *s, int64_t before_us, int64_t now_us, uint64_t *removed, struct kv_error *err);
typedef void kv_told(void *ctx, uint64_t done, uint64_t total); /* how far a long piece of work is */
/* A folder that verifies and starts as it is, made while the server runs; the key file comes along unless it is kept elsewhere. */
enum kv_status kv_store_backup(struct kv_store *s, const char *to, kv_told *told, void *ctx, struct kv_error *err);

/* Recomputes the whole chain against the stored hashes and the signed heads. IO and locking errors are the status. */
enum kv_status kv_store_verify(struct kv_store *s, struct kv_verify_result *out, struct kv_error *err);
/* The same for a stopped daemon's directory; STORE_LOCKED while one runs. Changes nothing. */
enum kv_status kv_store_verify_offline(const char *dir, const char *key_file, struct kv_verify_result *out, struct kv_error *err);

#endif
