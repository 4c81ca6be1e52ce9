/* test_extent_client.c — the remote tier's client against servers with real certificates: which it trusts, and what it says of those it does not. */
#include "controller/extent_client.h"

#include <check.h>
#include <gnutls/x509.h>
#include <microhttpd.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

Suite *suite_extent_client(void);

enum { DAY_S = 86400 };
static const _Atomic bool never;
static const char *const name = "00000000000000000000000000000000000000000000000000000000000000aa";

/* ---------------------------------------------------------------- certificates */

struct party {
    gnutls_x509_privkey_t key;
    gnutls_x509_crt_t crt;
    char *key_pem, *crt_pem;
};

static char *text_of(gnutls_datum_t *pem)
{
    char *text = strndup((const char *)pem->data, pem->size);
    gnutls_free(pem->data);
    return text;
}

/* Signed by `by`, NULL: by itself, an authority; for the address 127.0.0.last, valid until `ends_s` from now. */
static struct party certify(const struct party *by, uint8_t last, long ends_s)
{
    struct party p;
    gnutls_datum_t pem;
    uint8_t address[4] = {127, 0, 0, last}, serial = last;
    time_t now = time(NULL);
    ck_assert_int_eq(gnutls_x509_privkey_init(&p.key), 0);
    ck_assert_int_eq(gnutls_x509_privkey_generate(p.key, GNUTLS_PK_ECDSA, GNUTLS_CURVE_TO_BITS(GNUTLS_ECC_CURVE_SECP256R1), 0), 0);
    ck_assert_int_eq(gnutls_x509_crt_init(&p.crt), 0);
    gnutls_x509_crt_set_version(p.crt, 3);
    gnutls_x509_crt_set_serial(p.crt, &serial, 1);
    gnutls_x509_crt_set_activation_time(p.crt, now - 2 * DAY_S);
    gnutls_x509_crt_set_expiration_time(p.crt, now + ends_s);
    gnutls_x509_crt_set_key(p.crt, p.key);
    gnutls_x509_crt_set_dn_by_oid(p.crt, GNUTLS_OID_X520_COMMON_NAME, 0, by ? "store" : "authority", by ? 5 : 9);
    gnutls_x509_crt_set_ca_status(p.crt, !by);
    gnutls_x509_crt_set_key_usage(p.crt, by ? GNUTLS_KEY_DIGITAL_SIGNATURE : GNUTLS_KEY_KEY_CERT_SIGN);
    if (by) gnutls_x509_crt_set_subject_alt_name(p.crt, GNUTLS_SAN_IPADDRESS, address, sizeof address, GNUTLS_FSAN_SET);
    ck_assert_int_eq(gnutls_x509_crt_sign2(p.crt, by ? by->crt : p.crt, by ? by->key : p.key, GNUTLS_DIG_SHA256, 0), 0);
    ck_assert_int_eq(gnutls_x509_crt_export2(p.crt, GNUTLS_X509_FMT_PEM, &pem), 0);
    p.crt_pem = text_of(&pem);
    ck_assert_int_eq(gnutls_x509_privkey_export2(p.key, GNUTLS_X509_FMT_PEM, &pem), 0);
    p.key_pem = text_of(&pem);
    return p;
}

static void forget(struct party *p)
{
    gnutls_x509_crt_deinit(p->crt);
    gnutls_x509_privkey_deinit(p->key);
    free(p->crt_pem);
    free(p->key_pem);
}

/* ---------------------------------------------------------------- a server that has one object */

static _Atomic unsigned answers; /* an HTTP status; 0: as it should */

static enum MHD_Result serve(void *cls, struct MHD_Connection *c, const char *url, const char *method, const char *version, const char *data, size_t *n, void **state)
{
    static const char facts[] = "{\"objects\":1,\"bytes\":5,\"capacity_bytes\":7}", object[] = "bytes";
    (void)cls, (void)version, (void)data;
    if (!*state) return *state = (void *)method, MHD_YES;
    if (*n) return *n = 0, MHD_YES;
    const char *body = strcmp(url, "/v1/extents") ? object : facts;
    unsigned status = answers ? answers : !strcmp(method, "PUT") || !strcmp(method, "DELETE") ? 204 : 200;
    struct MHD_Response *r = MHD_create_response_from_buffer(status == 200 ? strlen(body) : 0, (void *)(uintptr_t)body, MHD_RESPMEM_PERSISTENT);
    enum MHD_Result queued = MHD_queue_response(c, status, r);
    MHD_destroy_response(r);
    return queued;
}

static struct MHD_Daemon *start(const struct party *p, int *port)
{
    unsigned flags = MHD_USE_INTERNAL_POLLING_THREAD | (p ? MHD_USE_TLS : 0);
    struct MHD_Daemon *d = p ? MHD_start_daemon(flags, 0, NULL, NULL, serve, NULL, MHD_OPTION_HTTPS_MEM_KEY, p->key_pem, MHD_OPTION_HTTPS_MEM_CERT, p->crt_pem, MHD_OPTION_END)
                             : MHD_start_daemon(flags, 0, NULL, NULL, serve, NULL, MHD_OPTION_END);
    ck_assert_ptr_nonnull(d);
    *port = MHD_get_daemon_info(d, MHD_DAEMON_INFO_BIND_PORT)->port;
    return d;
}

static char path[64];

static const char *file_of(const char *text)
{
    snprintf(path, sizeof path, "/tmp/kvasir-ca-%d", (int)getpid());
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    fputs(text, f);
    fclose(f);
    return path;
}

/* Asks for facts, and what is said then: "" means that they came. ca: PEM; NULL: the system's authorities. */
static enum kv_status ask(const char *scheme, int port, const char *ca, char why[KV_EXTENT_WHY_CHARS])
{
    struct kv_extent_client *c;
    struct kv_error err = {0};
    struct kv_remote_facts facts;
    char url[64];
    snprintf(url, sizeof url, "%s://127.0.0.1:%d", scheme, port);
    ck_assert_msg(!kv_extent_client_create(&(struct kv_extent_client_config){url, "", ca ? file_of(ca) : "", 60000}, &c, &err), "%s", err.message);
    const struct kv_remote_io *io = kv_extent_client_io(c);
    enum kv_status s = io->facts(io->ctx, &facts, &never);
    kv_extent_client_why(c, why);
    if (s == KV_OK) ck_assert(facts.objects == 1 && facts.bytes == 5 && facts.capacity_bytes == 7);
    kv_extent_client_destroy(c);
    if (ca) unlink(path);
    return s;
}

static void refused(const char *scheme, const struct party *p, const char *ca, const char *said)
{
    char why[KV_EXTENT_WHY_CHARS];
    int port;
    struct MHD_Daemon *d = start(p, &port);
    ck_assert_int_eq(ask(scheme, port, ca, why), KV_REMOTE_UNAVAILABLE);
    ck_assert_msg(strstr(why, said) != NULL, "'%s' is not in '%s'", said, why);
    MHD_stop_daemon(d);
}

START_TEST(only_a_certificate_of_the_named_authority_is_trusted)
{
    struct party ca = certify(NULL, 100, DAY_S), other = certify(NULL, 101, DAY_S);
    struct party good = certify(&ca, 1, DAY_S), expired = certify(&ca, 1, -DAY_S), elsewhere = certify(&ca, 9, DAY_S);
    char why[KV_EXTENT_WHY_CHARS];
    int port;
    struct MHD_Daemon *d = start(&good, &port);
    ck_assert_int_eq(ask("https", port, ca.crt_pem, why), KV_OK);
    ck_assert_str_eq(why, "");
    MHD_stop_daemon(d);
    refused("https", &good, other.crt_pem, "tiers.remote.ca_file signed it");
    refused("https", &good, NULL, "tiers.remote.ca_file signed it");
    refused("https", &expired, ca.crt_pem, "has expired");
    refused("https", &elsewhere, ca.crt_pem, "the host in tiers.remote.url");
    refused("http", &good, ca.crt_pem, "does it serve https?");
    refused("https", NULL, ca.crt_pem, "does it serve https,");
    forget(&elsewhere);
    forget(&expired);
    forget(&good);
    forget(&other);
    forget(&ca);
}
END_TEST

START_TEST(a_file_without_authorities_is_refused_at_the_start)
{
    struct kv_extent_client *c;
    struct kv_error err = {0};
    ck_assert_int_eq(kv_extent_client_create(&(struct kv_extent_client_config){"https://127.0.0.1:1", "", "/nowhere/ca.pem", 1000}, &c, &err), KV_FILE_UNREADABLE);
    ck_assert_str_eq(err.where, "tiers.remote.ca_file");
    ck_assert_int_eq(kv_extent_client_create(&(struct kv_extent_client_config){"https://127.0.0.1:1", "", file_of("nothing of the kind\n"), 1000}, &c, &err), KV_BAD_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(err.message, "holds no certificate"));
    ck_assert_str_ne(err.hint, "");
    unlink(path);
}
END_TEST

/* What the environment says of proxies is for programs that fetch pages: rows and the token go to the store alone. */
START_TEST(proxies_of_the_environment_are_not_used)
{
    char why[KV_EXTENT_WHY_CHARS];
    int port;
    struct MHD_Daemon *d = start(NULL, &port);
    static const char *const names[] = {"http_proxy", "https_proxy", "all_proxy", "HTTPS_PROXY", "ALL_PROXY"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) setenv(names[i], "http://127.0.0.1:9", 1);
    unsetenv("no_proxy");
    unsetenv("NO_PROXY");
    ck_assert_int_eq(ask("http", port, NULL, why), KV_OK);
    MHD_stop_daemon(d);
}
END_TEST

START_TEST(what_the_store_answers_is_said_with_what_to_do)
{
    static const struct { unsigned http; enum kv_status status; const char *said; } rows[] = {
        {401, KV_UNAUTHENTICATED, "token_file"}, {403, KV_FORBIDDEN, "token_file"}, {413, KV_BODY_TOO_LARGE, "extents.object_bytes"}, {507, KV_NO_SPACE, "extents.capacity_bytes"},
        {429, KV_RATE_LIMITED, "429"}, {500, KV_REMOTE_UNAVAILABLE, "see its log"}, {302, KV_REMOTE_UNAVAILABLE, "302"}, {400, KV_REMOTE_UNAVAILABLE, "extents.serve"}};
    char why[KV_EXTENT_WHY_CHARS], url[64];
    uint8_t got[16];
    size_t n;
    int port;
    struct MHD_Daemon *d = start(NULL, &port);
    struct kv_extent_client *c;
    struct kv_error err = {0};
    snprintf(url, sizeof url, "http://127.0.0.1:%d/", port);
    ck_assert_int_eq(kv_extent_client_create(&(struct kv_extent_client_config){url, "", "", 60000}, &c, &err), KV_OK);
    const struct kv_remote_io *io = kv_extent_client_io(c);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        answers = rows[i].http;
        ck_assert_int_eq(io->put(io->ctx, name, "bytes", 5, &never), rows[i].status);
        kv_extent_client_why(c, why);
        ck_assert_msg(strstr(why, rows[i].said) != NULL, "'%s' is not in '%s'", rows[i].said, why);
        ck_assert_int_eq(io->get(io->ctx, name, got, sizeof got, &n, &never), rows[i].status);
        answers = 0;
        ck_assert_int_eq(io->put(io->ctx, name, "bytes", 5, &never), KV_OK);
        ck_assert_int_eq(io->get(io->ctx, name, got, sizeof got, &n, &never), KV_OK);
        ck_assert(n == 5 && !memcmp(got, "bytes", 5));
        kv_extent_client_why(c, why);
        ck_assert_str_eq(why, "");
    }
    MHD_stop_daemon(d);
    ck_assert_int_eq(io->erase(io->ctx, name, &never), KV_REMOTE_UNAVAILABLE);
    kv_extent_client_why(c, why);
    ck_assert_ptr_nonnull(strstr(why, "is it running"));
    kv_extent_client_destroy(c);
}
END_TEST

Suite *suite_extent_client(void)
{
    Suite *s = suite_create("extent_client");
    TCase *t = tcase_create("extent_client");
    tcase_set_timeout(t, 120);
    tcase_add_test(t, only_a_certificate_of_the_named_authority_is_trusted);
    tcase_add_test(t, a_file_without_authorities_is_refused_at_the_start);
    tcase_add_test(t, proxies_of_the_environment_are_not_used);
    tcase_add_test(t, what_the_store_answers_is_said_with_what_to_do);
    suite_add_tcase(s, t);
    return s;
}
