/* store_append.c — rows into the chain and into the database: hashed one after the other, inserted several at a time. */
#include "controller/store/store_internal.h"

#include <string.h>

#define ROW "(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)"
#define FOUR_ROWS ROW "," ROW "," ROW "," ROW
static const char one_row[] = "INSERT INTO receipts VALUES " ROW;
static const char many_rows[] = "INSERT INTO receipts VALUES " FOUR_ROWS "," FOUR_ROWS "," FOUR_ROWS "," FOUR_ROWS;
enum { MANY = 16, COLUMNS = 23 };
_Static_assert(sizeof many_rows - sizeof one_row == (MANY - 1) * sizeof ROW, "as many rows as MANY says");

enum kv_status kv_store_prepare_append(struct kv_store *s, struct kv_error *err)
{
    if (sqlite3_prepare_v3(s->db, one_row, -1, SQLITE_PREPARE_PERSISTENT, &s->insert, NULL) != SQLITE_OK ||
        sqlite3_prepare_v3(s->db, many_rows, -1, SQLITE_PREPARE_PERSISTENT, &s->insert_many, NULL) != SQLITE_OK)
        return kv_store_sql_error(s->db, "receipts", err);
    return KV_OK;
}

/* The next row of the chain. Text ends inside its field, whatever the caller left behind it. */
static void chain_on(struct kv_store *s, const struct kv_receipt *r, struct kv_receipt_row *row)
{
    row->r = *r;
    row->r.tenant[sizeof row->r.tenant - 1] = row->r.session[sizeof row->r.session - 1] = row->r.detail[sizeof row->r.detail - 1] = 0;
    row->id = s->chain.id + 1;
    kv_receipt_hash(s->chain.hash, row->id, &row->r, row->hash);
    s->chain.id = row->id;
    memcpy(s->chain.hash, row->hash, 32);
}

static void bind(sqlite3_stmt *q, int i, const struct kv_receipt_row *row)
{
    const struct kv_receipt *r = &row->r;
    sqlite3_bind_int64(q, i++, (sqlite3_int64)row->id);
    sqlite3_bind_int64(q, i++, r->at_us);
    sqlite3_bind_text(q, i++, kv_row_kind_name((int)r->kind), -1, SQLITE_STATIC);
    sqlite3_bind_text(q, i++, kv_status_name(r->reason), -1, SQLITE_STATIC);
    const uint64_t n1[] = {r->request, r->candidate, r->epoch, r->contract, r->published};
    for (int k = 0; k < 5; k++) sqlite3_bind_int64(q, i++, (sqlite3_int64)n1[k]);
    const int64_t n2[] = {r->layer, r->kv_head, r->q_head, r->position};
    for (int k = 0; k < 4; k++) sqlite3_bind_int64(q, i++, n2[k]);
    const uint64_t n3[] = {r->bytes, r->rows, r->rows_total, r->tokens};
    for (int k = 0; k < 4; k++) sqlite3_bind_int64(q, i++, (sqlite3_int64)n3[k]);
    sqlite3_bind_double(q, i++, r->value);
    sqlite3_bind_blob(q, i++, r->digest, 32, SQLITE_STATIC);
    sqlite3_bind_text(q, i++, r->tenant, -1, SQLITE_STATIC);
    sqlite3_bind_text(q, i++, r->session, -1, SQLITE_STATIC);
    sqlite3_bind_text(q, i++, r->detail, -1, SQLITE_STATIC);
    sqlite3_bind_blob(q, i++, row->hash, 32, SQLITE_STATIC);
}

static enum kv_status insert(struct kv_store *s, const struct kv_receipt_row *row, int n, struct kv_error *err)
{
    sqlite3_stmt *q = n == MANY ? s->insert_many : s->insert;
    for (int i = 0; i < n; i++) bind(q, 1 + i * COLUMNS, &row[i]);
    int rc = sqlite3_step(q);
    sqlite3_reset(q);
    if (rc != SQLITE_DONE) return kv_store_sql_error(s->db, "receipts", err);
    for (int i = 0; i < n && s->group && s->n_group < GROUP_ROWS + POST_ROWS; i++) s->group[s->n_group++] = row[i];
    return KV_OK;
}

static bool ends_request(const struct kv_receipt *r)
{
    return (int)r->kind == KV_RECEIPT_REQUEST && r->request;
}

static enum kv_status put_root(struct kv_store *s, const struct kv_receipt_row *row, struct kv_error *err)
{
    return ends_request(&row->r) ? kv_store_put_root(s, row->r.request, row->id, err) : KV_OK;
}

enum kv_status kv_store_append(struct kv_store *s, const struct kv_receipt *r, uint64_t *id, struct kv_error *err)
{
    struct chain before = s->chain;
    struct kv_receipt_row row;
    chain_on(s, r, &row);
    enum kv_status st = insert(s, &row, 1, err);
    if (st != KV_OK) return s->chain = before, st;
    if (id) *id = row.id;
    return put_root(s, &row, err);
}

enum kv_status kv_store_append_ring(struct kv_store *s, const struct ring *q, uint64_t n, struct kv_error *err)
{
    struct kv_receipt_row row[MANY];
    uint64_t tail = atomic_load(&q->tail);
    enum kv_status st = KV_OK;
    for (uint64_t i = 0; i < n && st == KV_OK;) {
        int k = 0;
        do chain_on(s, &q->row[(tail + i + (uint64_t)k) % q->capacity], &row[k]);
        while (!ends_request(&row[k++].r) && k < MANY && i + (uint64_t)k < n); /* a root is taken over rows that are there */
        if (k == MANY) st = insert(s, row, MANY, err);
        else
            for (int j = 0; j < k && st == KV_OK; j++) st = insert(s, &row[j], 1, err);
        if (st == KV_OK) st = put_root(s, &row[k - 1], err);
        i += (uint64_t)k;
    }
    return st;
}
