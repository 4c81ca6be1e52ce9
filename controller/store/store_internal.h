/* store_internal.h — what store*.c share; nobody else includes it. */
#ifndef KV_STORE_INTERNAL_H
#define KV_STORE_INTERNAL_H

#include "controller/store/store.h"

#include <pthread.h>
#include <semaphore.h>
#include <sqlite3.h>
#include <stdatomic.h>

struct ring { /* one producer, one consumer */
    struct kv_receipt *row;
    uint64_t capacity;
    _Atomic uint64_t head, tail; /* head: next to write; tail: next to read */
};

/* One transaction of a caller that waits: run inside a savepoint by the writer. */
struct op {
    enum kv_status (*run)(struct kv_store *s, void *arg, struct kv_error *err);
    void *arg;
    struct kv_error err;
    enum kv_status status;
    bool done;
    bool alone;                  /* in a transaction of its own, with foreign keys off */
    struct op *next;
};

struct chain { /* where the receipt chain stands */
    uint64_t id;
    uint8_t hash[32];
};

struct heads { /* the signed heads: receipts.heads */
    int fd;
    uint8_t key[32], mac[32]; /* mac: of the last record; the next one covers it */
    uint64_t records, id;
};

struct kv_store {
    struct kv_store_config config;
    char dir[768];
    int lock_fd;
    sqlite3 *db;                 /* writer thread, once it runs */
    sqlite3_stmt *insert, *insert_many, *leaves, *root; /* the last two made at the first request's end */
    struct chain chain, committed;
    struct heads heads;
    int64_t head_written_us, sized_us;
    bool untrusted;
    struct kv_error distrust;
    char narrowed[76];           /* files that others could reach when it was opened, and their modes */
    int wal_pages;

    struct ring decode, others;
    pthread_mutex_t post_mutex;  /* producers of `others` */
    sem_t wake;
    pthread_t writer;
    bool running;
    _Atomic bool stop, turned_away; /* turned_away: the decode thread's last receipt found its queue full, and waits in the engine */
    _Atomic uint64_t refused, commits, bytes; /* bytes: of its files, as the writer saw them last */
    _Atomic int64_t failing_since_us, last_commit_us, group_since_us; /* group_since_us: when the group in work was begun; 0: none */
    _Atomic int failing_reason;

    pthread_mutex_t op_mutex;
    pthread_cond_t op_done;
    struct op *ops, **ops_tail;
    struct kv_receipt_row *group; /* rows of the transaction in work, for on_row */
    int32_t n_group;

    pthread_mutex_t read_mutex;  /* held by a query, and by the writer while it checkpoints */
    sqlite3 *read_db;
    pthread_mutex_t head_mutex;
    struct chain shown;          /* copy of committed for readers */
};

enum { GROUP_ROWS = 4096, POST_ROWS = 4096 };

enum kv_status kv_store_sql_error(sqlite3 *db, const char *where, struct kv_error *err);
/* Writer thread, inside a transaction. */
enum kv_status kv_store_append(struct kv_store *s, const struct kv_receipt *r, uint64_t *id, struct kv_error *err);
enum kv_status kv_store_append_ring(struct kv_store *s, const struct ring *q, uint64_t n, struct kv_error *err); /* the first n that wait there */
enum kv_status kv_store_prepare_append(struct kv_store *s, struct kv_error *err);
/* Hands an op to the writer and waits for its commit. */
enum kv_status kv_store_run(struct kv_store *s, enum kv_status (*run)(struct kv_store *, void *, struct kv_error *), void *arg, struct kv_error *err);
/* Writer thread. NULL: the statement does not compile; kv_store_done then tells why. kv_store_done runs a statement that returns nothing and finalises it. */
sqlite3_stmt *kv_store_prepare(struct kv_store *s, const char *sql);
enum kv_status kv_store_done(struct kv_store *s, sqlite3_stmt *q, struct kv_error *err);
void kv_store_version_digest(const char *hex, uint8_t out[32]);
/* The read connection; the caller holds read_mutex until kv_store_finish has finalised the statement. */
enum kv_status kv_store_query(struct kv_store *s, const char *sql, sqlite3_stmt **q, struct kv_error *err);
enum kv_status kv_store_finish(struct kv_store *s, sqlite3_stmt *q, int rc, struct kv_error *err);
void kv_store_copy_text(sqlite3_stmt *q, int i, char *out, size_t cap);
void kv_store_read_row(sqlite3_stmt *q, struct kv_receipt_row *row);
enum kv_status kv_store_run_alone(struct kv_store *s, enum kv_status (*run)(struct kv_store *, void *, struct kv_error *), void *arg, struct kv_error *err);
/* Writer thread: the root of a request whose REQUEST row is `last`. */
enum kv_status kv_store_put_root(struct kv_store *s, uint64_t request, uint64_t last, struct kv_error *err);
enum kv_status kv_store_verify_roots(sqlite3 *db, uint64_t sealed, struct kv_verify_result *out, struct kv_error *err);
/* The last sealed row and the chain's hash there; 0 when nothing was sealed. receipt: the one that says so. */
uint64_t kv_store_sealed(sqlite3 *db, uint8_t hash[32], uint64_t *receipt);
extern const char kv_store_columns[]; /* of receipts, in the order kv_store_read_row expects */

/* store_folder.c: makes an empty file of mode 0600 unless it is there (SQLite would let others read it); takes others' rights from what is in the folder, and says so. */
enum kv_status kv_store_make_file(const char *path, struct kv_error *err);
enum kv_status kv_store_narrow(struct kv_store *s, struct kv_error *err);
void kv_store_tell_narrowed(struct kv_store *s);

int64_t kv_store_now_us(int clock);
enum kv_status kv_store_migrate(sqlite3 *db, const char *path, struct kv_error *err);
enum kv_status kv_heads_open(struct heads *h, const char *dir, const char *key_file, bool create, struct kv_error *err);
void kv_heads_close(struct heads *h);
/* The newest head that covers no row after id. */
bool kv_heads_at_or_before(const struct heads *h, uint64_t id, struct chain *out);
enum kv_status kv_heads_append(struct heads *h, const struct chain *c, int64_t at_us);
enum kv_status kv_heads_check_tail(sqlite3 *db, struct heads *h, struct chain *chain, struct kv_error *err);
enum kv_status kv_heads_verify(sqlite3 *db, pthread_mutex_t *read_mutex, const struct heads *h, struct kv_verify_result *out, struct kv_error *err);

#endif
