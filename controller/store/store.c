/* store.c — opening, the bounded queues and the writer thread. */
#include "controller/store/store_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { RETRY_MS = 200, HEAD_INTERVAL_US = 1000000, SETTLE_MS = 5000, WAL_PAGES = 4000, WAL_PAGES_HARD = 16000, STALLED_US = 3000000, SIZE_INTERVAL_US = 1000000 };

int64_t kv_store_now_us(int clock)
{
    struct timespec t;
    clock_gettime((clockid_t)clock, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

enum kv_status kv_store_sql_error(sqlite3 *db, const char *where, struct kv_error *err)
{
    int rc = sqlite3_errcode(db);
    switch (rc) {
    case SQLITE_FULL:
        kv_fail(err, KV_NO_SPACE, where, "the disk is full");
        kv_hint(err, "free space in the state directory; receipts wait in memory until then");
        return KV_NO_SPACE;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
        kv_fail(err, KV_STORE_CORRUPT, where, "not a sound database: %s", sqlite3_errmsg(db));
        kv_hint(err, "restore a backup, or move the state directory away to start afresh");
        return KV_STORE_CORRUPT;
    case SQLITE_NOMEM:
        return kv_fail(err, KV_OUT_OF_MEMORY, where, "memory could not be had");
    case SQLITE_CONSTRAINT:
        return kv_fail(err, KV_CONFLICT, where, "%s", sqlite3_errmsg(db));
    default:
        return kv_fail(err, KV_IO_ERROR, where, "%s", sqlite3_errmsg(db));
    }
}

/* ---------------------------------------------------------------- queues */

static bool ring_put(struct ring *q, const struct kv_receipt *r)
{
    uint64_t head = atomic_load_explicit(&q->head, memory_order_relaxed);
    if (head - atomic_load_explicit(&q->tail, memory_order_acquire) >= q->capacity) return false;
    q->row[head % q->capacity] = *r;
    atomic_store_explicit(&q->head, head + 1, memory_order_release);
    return true;
}

static uint64_t ring_length(struct ring *q)
{
    uint64_t tail = atomic_load(&q->tail);
    return atomic_load(&q->head) - tail;
}

static bool emit(void *ctx, const struct kv_receipt *r)
{
    struct kv_store *s = ctx;
    bool ok = ring_put(&s->decode, r);
    atomic_store(&s->turned_away, !ok);
    if (!ok) {
        atomic_fetch_add(&s->refused, 1);
        return false;
    }
    sem_post(&s->wake);
    return true;
}

struct kv_receipt_sink kv_store_sink(struct kv_store *s)
{
    return (struct kv_receipt_sink){.ctx = s, .emit = emit};
}

/* *upto: what the ring's tail has to reach. */
static bool post(struct kv_store *s, const struct kv_receipt *r, uint64_t *upto)
{
    pthread_mutex_lock(&s->post_mutex);
    bool ok = ring_put(&s->others, r);
    *upto = atomic_load(&s->others.head);
    pthread_mutex_unlock(&s->post_mutex);
    if (!ok) atomic_fetch_add(&s->refused, 1);
    else sem_post(&s->wake);
    return ok;
}

bool kv_store_post(struct kv_store *s, const struct kv_receipt *r)
{
    return post(s, r, &(uint64_t){0});
}

static bool settled(struct kv_store *s, const struct ring *q, uint64_t upto, int64_t wait_ms)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += wait_ms % 1000 * 1000000;
    until.tv_sec += wait_ms / 1000 + until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&s->op_mutex); /* every group ends with a broadcast under it */
    while (atomic_load(&q->tail) < upto && !atomic_load(&s->failing_since_us) && !pthread_cond_clockwait(&s->op_done, &s->op_mutex, CLOCK_MONOTONIC, &until)) {}
    bool durable = atomic_load(&q->tail) >= upto;
    pthread_mutex_unlock(&s->op_mutex);
    return durable;
}

bool kv_store_settle(struct kv_store *s)
{
    bool taken = !atomic_load(&s->turned_away);
    return settled(s, &s->decode, atomic_load(&s->decode.head), SETTLE_MS) && taken;
}

bool kv_store_post_settled(struct kv_store *s, const struct kv_receipt *r, int32_t wait_ms)
{
    uint64_t upto;
    return post(s, r, &upto) && settled(s, &s->others, upto, wait_ms);
}

static enum kv_status submit(struct kv_store *s, enum kv_status (*run)(struct kv_store *, void *, struct kv_error *), void *arg, bool alone, struct kv_error *err)
{
    struct op op = {.run = run, .arg = arg, .alone = alone};
    pthread_mutex_lock(&s->op_mutex);
    *s->ops_tail = &op;
    s->ops_tail = &op.next;
    sem_post(&s->wake);
    while (!op.done) pthread_cond_wait(&s->op_done, &s->op_mutex);
    pthread_mutex_unlock(&s->op_mutex);
    if (op.status != KV_OK && err) *err = op.err;
    return op.status;
}

enum kv_status kv_store_run(struct kv_store *s, enum kv_status (*run)(struct kv_store *, void *, struct kv_error *), void *arg, struct kv_error *err)
{
    return submit(s, run, arg, false, err);
}

enum kv_status kv_store_run_alone(struct kv_store *s, enum kv_status (*run)(struct kv_store *, void *, struct kv_error *), void *arg, struct kv_error *err)
{
    return submit(s, run, arg, true, err);
}

/* ---------------------------------------------------------------- the writer */

/* An op that fails undoes itself alone; a failure of the database itself fails the group. */
static enum kv_status run_op(struct kv_store *s, struct op *o, struct kv_error *err)
{
    struct chain before = s->chain;
    int32_t group = s->n_group;
    if (sqlite3_exec(s->db, "SAVEPOINT op", NULL, NULL, NULL) != SQLITE_OK) return kv_store_sql_error(s->db, "transaction", err);
    o->status = o->run(s, o->arg, &o->err);
    if (o->status != KV_OK) {
        s->chain = before;
        s->n_group = group;
        if (sqlite3_get_autocommit(s->db)) return *err = o->err, o->status;
        sqlite3_exec(s->db, "ROLLBACK TO op", NULL, NULL, NULL);
    }
    return sqlite3_exec(s->db, "RELEASE op", NULL, NULL, NULL) == SQLITE_OK ? KV_OK : kv_store_sql_error(s->db, "transaction", err);
}

static void finish_ops(struct kv_store *s, struct op *ops, enum kv_status group, const struct kv_error *err)
{
    pthread_mutex_lock(&s->op_mutex);
    for (struct op *o = ops, *next; o; o = next) {
        next = o->next;
        if (group != KV_OK) {
            kv_fail(&o->err, KV_STORE_UNAVAILABLE, err->where, "receipts cannot be written: %s", err->message);
            kv_hint(&o->err, "%s", err->hint);
            o->status = KV_STORE_UNAVAILABLE;
        }
        o->done = true;
    }
    pthread_cond_broadcast(&s->op_done);
    pthread_mutex_unlock(&s->op_mutex);
}

static void checkpoint(struct kv_store *s)
{
    if (s->wal_pages < WAL_PAGES) return;
    if (s->wal_pages >= WAL_PAGES_HARD) {
        atomic_store(&s->group_since_us, 0); /* it waits for a reader, a backup perhaps, and not for the disk */
        pthread_mutex_lock(&s->read_mutex);
        atomic_store(&s->group_since_us, kv_store_now_us(CLOCK_MONOTONIC));
    } else if (pthread_mutex_trylock(&s->read_mutex)) return;
    if (sqlite3_wal_checkpoint_v2(s->db, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL) == SQLITE_OK) s->wal_pages = 0;
    pthread_mutex_unlock(&s->read_mutex);
}

static int on_wal(void *ctx, sqlite3 *db, const char *name, int pages)
{
    (void)db, (void)name;
    ((struct kv_store *)ctx)->wal_pages = pages;
    return SQLITE_OK;
}

static void after_commit(struct kv_store *s, bool had_ops)
{
    s->committed = s->chain;
    pthread_mutex_lock(&s->head_mutex);
    s->shown = s->committed;
    pthread_mutex_unlock(&s->head_mutex);
    atomic_fetch_add(&s->commits, 1);
    int64_t now = kv_store_now_us(CLOCK_MONOTONIC);
    if (s->committed.id > s->heads.id && (had_ops || now - s->head_written_us >= HEAD_INTERVAL_US)) {
        if (kv_heads_append(&s->heads, &s->committed, kv_store_now_us(CLOCK_REALTIME)) == KV_OK) s->head_written_us = now;
    }
    if (s->config.on_row)
        for (int32_t i = 0; i < s->n_group; i++) s->config.on_row(s->config.on_row_ctx, &s->group[i]);
}

/* One group: everything queued now, in one transaction. False when it failed and waits to be tried again. */
static bool write_group(struct kv_store *s)
{
    pthread_mutex_lock(&s->op_mutex);
    struct op *ops = s->ops;
    bool alone = ops && ops->alone; /* the first one, with nothing beside it; the rest waits for the next group */
    s->ops = NULL;
    s->ops_tail = &s->ops;
    if (alone && (s->ops = ops->next)) {
        for (s->ops_tail = &s->ops; *s->ops_tail; s->ops_tail = &(*s->ops_tail)->next) {}
        sem_post(&s->wake);
    }
    if (alone) ops->next = NULL;
    for (struct op **o = &ops; !alone && *o; o = &(*o)->next)
        if ((*o)->alone) {
            s->ops = *o;
            for (s->ops_tail = &s->ops; *s->ops_tail; s->ops_tail = &(*s->ops_tail)->next) {}
            *o = NULL;
            sem_post(&s->wake);
            break;
        }
    pthread_mutex_unlock(&s->op_mutex);
    uint64_t nd = ring_length(&s->decode), no = ring_length(&s->others);
    if (nd > GROUP_ROWS) nd = GROUP_ROWS;
    if (alone) nd = no = 0;
    if (alone) sqlite3_exec(s->db, "PRAGMA foreign_keys = OFF", NULL, NULL, NULL);
    if (!nd && !no && !ops) return true;
    int64_t start = kv_store_now_us(CLOCK_MONOTONIC);
    atomic_store(&s->group_since_us, start);
    s->n_group = 0;
    s->chain = s->committed;
    struct kv_error err = {0};
    enum kv_status st = KV_OK;
    if (sqlite3_exec(s->db, "BEGIN IMMEDIATE", NULL, NULL, NULL) != SQLITE_OK) st = kv_store_sql_error(s->db, "transaction", &err);
    if (st == KV_OK) st = kv_store_append_ring(s, &s->decode, nd, &err);
    if (st == KV_OK) st = kv_store_append_ring(s, &s->others, no, &err);
    for (struct op *o = ops; o && st == KV_OK; o = o->next) st = run_op(s, o, &err);
    if (st == KV_OK && sqlite3_exec(s->db, "COMMIT", NULL, NULL, NULL) != SQLITE_OK) st = kv_store_sql_error(s->db, "transaction", &err);
    int64_t now = kv_store_now_us(CLOCK_MONOTONIC);
    if (st == KV_OK) {
        atomic_fetch_add(&s->decode.tail, nd);
        atomic_fetch_add(&s->others.tail, no);
        atomic_store(&s->failing_since_us, 0);
        atomic_store(&s->last_commit_us, now - start);
        after_commit(s, ops != NULL);
    } else {
        if (!sqlite3_get_autocommit(s->db)) sqlite3_exec(s->db, "ROLLBACK", NULL, NULL, NULL);
        s->chain = s->committed;
        atomic_store(&s->failing_reason, (int)st);
        if (!atomic_load(&s->failing_since_us)) atomic_store(&s->failing_since_us, now);
    }
    if (alone) sqlite3_exec(s->db, "PRAGMA foreign_keys = ON", NULL, NULL, NULL);
    finish_ops(s, ops, st, &err);
    if (st == KV_OK) checkpoint(s);
    atomic_store(&s->group_since_us, 0);
    return st == KV_OK;
}

/* By the writer: even a look at a file waits on a disk that hangs, and whoever asks how the store is must not. */
static void size_files(struct kv_store *s)
{
    static const char *const files[] = {"kvasir.db", "kvasir.db-wal", "receipts.heads"};
    char path[1024];
    struct stat st;
    uint64_t bytes = 0;
    int64_t now = kv_store_now_us(CLOCK_MONOTONIC);
    if (s->sized_us && now - s->sized_us < SIZE_INTERVAL_US) return;
    s->sized_us = now;
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", s->dir, files[i]);
        if (!stat(path, &st)) bytes += (uint64_t)st.st_size;
    }
    atomic_store(&s->bytes, bytes);
}

static void *writer(void *ctx)
{
    struct kv_store *s = ctx;
    while (!atomic_load(&s->stop)) {
        size_files(s);
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until); /* not the wall clock: set back, it would hold up heads and retries for as long */
        until.tv_nsec += RETRY_MS * 1000000L;
        if (until.tv_nsec >= 1000000000L) until.tv_sec++, until.tv_nsec -= 1000000000L;
        if (sem_clockwait(&s->wake, CLOCK_MONOTONIC, &until) == 0)
            while (sem_trywait(&s->wake) == 0) {} /* one group takes all that is queued */
        bool failing = !write_group(s);
        if (failing) nanosleep(&(struct timespec){0, RETRY_MS * 1000000L}, NULL);
        else if (s->committed.id > s->heads.id && kv_store_now_us(CLOCK_MONOTONIC) - s->head_written_us >= HEAD_INTERVAL_US) {
            if (kv_heads_append(&s->heads, &s->committed, kv_store_now_us(CLOCK_REALTIME)) == KV_OK) s->head_written_us = kv_store_now_us(CLOCK_MONOTONIC);
        }
    }
    while ((ring_length(&s->decode) || ring_length(&s->others) || s->ops) && write_group(s)) {}
    return NULL;
}

/* ---------------------------------------------------------------- open, close */

static enum kv_status take_lock(struct kv_store *s, struct kv_error *err)
{
    char path[1024];
    if (mkdir(s->dir, 0700) && errno != EEXIST) {
        kv_fail(err, errno == ENOSPC ? KV_NO_SPACE : KV_FILE_UNREADABLE, s->dir, "the state directory cannot be made: %s", strerror(errno));
        kv_hint(err, "choose another with --state DIR");
        return err ? err->status : KV_FILE_UNREADABLE;
    }
    snprintf(path, sizeof path, "%s/lock", s->dir);
    s->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (s->lock_fd < 0) return kv_fail(err, KV_FILE_UNREADABLE, path, "the lock file cannot be opened: %s", strerror(errno));
    if (flock(s->lock_fd, LOCK_EX | LOCK_NB)) {
        kv_fail(err, KV_STORE_LOCKED, s->dir, "another process holds the state directory");
        kv_hint(err, "stop the other kvasird, or choose another directory with --state DIR");
        return KV_STORE_LOCKED;
    }
    return KV_OK;
}

static enum kv_status open_database(struct kv_store *s, struct kv_error *err)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/kvasir.db", s->dir);
    enum kv_status st = kv_store_make_file(path, err);
    if (st != KV_OK) return st;
    if (sqlite3_open_v2(path, &s->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, NULL) != SQLITE_OK) return kv_store_sql_error(s->db, path, err);
    sqlite3_busy_timeout(s->db, 2000);
    /* kv_store_migrate looks at the version before anything is written to the file. */
    if (sqlite3_exec(s->db, "PRAGMA secure_delete = ON; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON; PRAGMA trusted_schema = OFF; PRAGMA cache_size = -16384", NULL, NULL, NULL) != SQLITE_OK)
        return kv_store_sql_error(s->db, path, err);
    st = kv_store_migrate(s->db, path, err);
    if (st != KV_OK) return st;
    if (sqlite3_exec(s->db, "PRAGMA journal_mode = WAL", NULL, NULL, NULL) != SQLITE_OK) return kv_store_sql_error(s->db, path, err);
    sqlite3_wal_autocheckpoint(s->db, 0);
    sqlite3_wal_hook(s->db, on_wal, s);
    st = kv_store_prepare_append(s, err);
    if (st != KV_OK) return st;
    if (sqlite3_open_v2(path, &s->read_db, SQLITE_OPEN_READONLY, NULL) != SQLITE_OK) return kv_store_sql_error(s->read_db, path, err);
    sqlite3_db_config(s->read_db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
    sqlite3_busy_timeout(s->read_db, s->config.busy_timeout_ms);
    return KV_OK;
}

static enum kv_status open_chain(struct kv_store *s, struct kv_error *err)
{
    enum kv_status st = kv_heads_open(&s->heads, s->dir, s->config.key_file, true, err);
    if (st != KV_OK && s->heads.fd < 0) return st;
    st = kv_heads_check_tail(s->db, &s->heads, &s->chain, &s->distrust);
    s->untrusted = st != KV_OK;
    s->committed = s->shown = s->chain;
    if (!s->heads.records && !s->untrusted) st = kv_heads_append(&s->heads, &s->chain, kv_store_now_us(CLOCK_REALTIME));
    return st == KV_OK || s->untrusted ? KV_OK : kv_fail(err, st, s->dir, "the first head cannot be signed");
}

enum kv_status kv_store_open(const struct kv_store_config *c, struct kv_store **out, struct kv_error *err)
{
    struct kv_store *s = calloc(1, sizeof *s);
    if (!s) return kv_fail(err, KV_OUT_OF_MEMORY, "store", "memory could not be had");
    s->config = *c;
    s->lock_fd = s->heads.fd = -1;
    s->ops_tail = &s->ops;
    if (s->config.queue_rows <= 0) s->config.queue_rows = 16384;
    if (s->config.busy_timeout_ms <= 0) s->config.busy_timeout_ms = 2000;
    sem_init(&s->wake, 0, 0);
    pthread_mutex_init(&s->post_mutex, NULL);
    pthread_mutex_init(&s->op_mutex, NULL);
    pthread_mutex_init(&s->read_mutex, NULL);
    pthread_mutex_init(&s->head_mutex, NULL);
    pthread_cond_init(&s->op_done, NULL);
    s->decode.capacity = (uint64_t)s->config.queue_rows;
    s->others.capacity = POST_ROWS;
    s->decode.row = calloc(s->decode.capacity, sizeof *s->decode.row);
    s->others.row = calloc(s->others.capacity, sizeof *s->others.row);
    if (c->on_row) s->group = calloc(GROUP_ROWS + POST_ROWS, sizeof *s->group);
    enum kv_status st = s->decode.row && s->others.row && (s->group || !c->on_row) ? KV_OK : kv_fail(err, KV_OUT_OF_MEMORY, "store", "memory could not be had");
    if (st == KV_OK && snprintf(s->dir, sizeof s->dir, "%s", c->dir) >= (int)sizeof s->dir) st = kv_fail(err, KV_BAD_ARGUMENT, "state", "the state directory's name is too long");
    if (st == KV_OK) st = take_lock(s, err);
    if (st == KV_OK) st = kv_store_narrow(s, err);
    if (st == KV_OK) st = open_database(s, err);
    if (st == KV_OK) st = open_chain(s, err);
    if (st == KV_OK && pthread_create(&s->writer, NULL, writer, s)) st = kv_fail(err, KV_OUT_OF_MEMORY, "store", "the writer thread cannot be started");
    s->running = st == KV_OK;
    if (st != KV_OK) {
        kv_store_close(s);
        return st;
    }
    kv_store_tell_narrowed(s);
    *out = s;
    return KV_OK;
}

void kv_store_close(struct kv_store *s)
{
    if (!s) return;
    if (s->running) {
        atomic_store(&s->stop, true);
        sem_post(&s->wake);
        pthread_join(s->writer, NULL);
        if (s->committed.id > s->heads.id) kv_heads_append(&s->heads, &s->committed, kv_store_now_us(CLOCK_REALTIME));
    }
    sqlite3_close(s->read_db);
    sqlite3_finalize(s->insert);
    sqlite3_finalize(s->insert_many);
    sqlite3_finalize(s->leaves);
    sqlite3_finalize(s->root);
    if (s->running) sqlite3_wal_checkpoint_v2(s->db, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL);
    sqlite3_close(s->db);
    kv_heads_close(&s->heads);
    if (s->lock_fd >= 0) close(s->lock_fd);
    pthread_mutex_destroy(&s->post_mutex);
    pthread_mutex_destroy(&s->op_mutex);
    pthread_mutex_destroy(&s->read_mutex);
    pthread_mutex_destroy(&s->head_mutex);
    pthread_cond_destroy(&s->op_done);
    sem_destroy(&s->wake);
    free(s->decode.row);
    free(s->others.row);
    free(s->group);
    free(s);
}

const char *kv_store_dir(const struct kv_store *s)
{
    return s->dir;
}

bool kv_store_trusted(const struct kv_store *s, struct kv_error *err)
{
    if (s->untrusted && err) *err = s->distrust;
    return !s->untrusted;
}

void kv_store_health(struct kv_store *s, struct kv_store_health *out)
{
    memset(out, 0, sizeof *out);
    pthread_mutex_lock(&s->head_mutex);
    out->receipts = s->shown.id;
    memcpy(out->head, s->shown.hash, 32);
    pthread_mutex_unlock(&s->head_mutex);
    out->queued = ring_length(&s->decode) + ring_length(&s->others);
    out->refused = atomic_load(&s->refused);
    out->commits = atomic_load(&s->commits);
    out->last_commit_us = atomic_load(&s->last_commit_us);
    out->failing_since_us = atomic_load(&s->failing_since_us);
    out->reason = out->failing_since_us ? (enum kv_status)atomic_load(&s->failing_reason) : KV_OK;
    int64_t group = atomic_load(&s->group_since_us); /* a disk that hangs fails no call: nothing returns from it */
    if (!out->failing_since_us && group && kv_store_now_us(CLOCK_MONOTONIC) - group > STALLED_US) out->failing_since_us = group, out->reason = KV_STORE_UNAVAILABLE;
    out->ok = !out->failing_since_us && ring_length(&s->decode) * 2 < s->decode.capacity && ring_length(&s->others) * 2 < s->others.capacity;
    out->bytes = atomic_load(&s->bytes);
}

static enum kv_status nothing(struct kv_store *s, void *arg, struct kv_error *err)
{
    (void)s, (void)arg, (void)err;
    return KV_OK;
}

enum kv_status kv_store_flush(struct kv_store *s, struct kv_error *err)
{
    /* A group takes at most GROUP_ROWS of the decode ring: wait until what was posted before has been taken. */
    uint64_t upto = atomic_load(&s->decode.head);
    enum kv_status st;
    do st = kv_store_run(s, nothing, NULL, err);
    while (st == KV_OK && atomic_load(&s->decode.tail) < upto);
    return st;
}
