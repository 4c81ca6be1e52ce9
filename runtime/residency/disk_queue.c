/* disk_queue.c — what is at the device while the thread that gave it goes on: the system's asynchronous reads and writes. Where it has none, or none left,
 * whoever asks makes the call himself. */
#include "runtime/residency/disk_state.h"

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int kv_disk_system_submit(aio_context_t c, struct iocb *r)
{
    return (int)syscall(SYS_io_submit, c, 1L, &r);
}

int kv_disk_system_collect(aio_context_t c, int least, int most, struct io_event *e)
{
    struct timespec none = {0};
    return (int)syscall(SYS_io_getevents, c, (long)least, (long)most, e, least ? NULL : &none);
}

/* The system's queue goes with the system's calls: who replaced these means every one of them. */
static bool queued(const struct kv_disk_io *io)
{
    return io->submit && (io->submit != kv_disk_system_submit || (io->pread == pread && io->pwrite == pwrite));
}

/* Kept between groups: making one takes longer than a small extent. */
struct queue kv_disk_take_queue(struct disk *d)
{
    struct queue q = {0};
    if (!queued(d->io)) return q;
    pthread_mutex_lock(&d->counters);
    for (int i = 0; i < QUEUES && !q.aio; i++) q.aio = d->queue[i], d->queue[i] = 0;
    pthread_mutex_unlock(&d->counters);
    if (!q.aio && syscall(SYS_io_setup, (long)QUEUE_DEPTH, &q.aio)) q.aio = 0;
    return q;
}

void kv_disk_give_queue(struct disk *d, struct queue *q)
{
    pthread_mutex_lock(&d->counters);
    for (int i = 0; i < QUEUES && q->aio; i++)
        if (!d->queue[i]) d->queue[i] = q->aio, q->aio = 0;
    pthread_mutex_unlock(&d->counters);
    if (q->aio) syscall(SYS_io_destroy, q->aio);
    q->aio = 0;
}

void kv_disk_drop_queues(struct disk *d)
{
    for (int i = 0; i < QUEUES; i++)
        if (d->queue[i]) syscall(SYS_io_destroy, d->queue[i]);
}

bool kv_disk_send(struct disk *d, struct queue *q, struct request *r, bool write, int fd, const struct iovec *part, int n_parts, uint64_t at)
{
    r->told = false;
    r->bytes = 0;
    for (int i = 0; i < n_parts; i++) r->bytes += part[i].iov_len;
    r->call = (struct iocb){.aio_data = (uintptr_t)r, .aio_lio_opcode = write ? IOCB_CMD_PWRITEV : IOCB_CMD_PREADV, .aio_fildes = (uint32_t)fd, .aio_buf = (uintptr_t)part,
                            .aio_nbytes = (uint64_t)n_parts, .aio_offset = (int64_t)at};
    if (!q->aio || q->under_way == QUEUE_DEPTH || d->io->submit(q->aio, &r->call) != 1) return false;
    q->under_way++;
    return true;
}

void kv_disk_hear(struct disk *d, struct queue *q, bool wait)
{
    struct io_event e[QUEUE_DEPTH];
    int n = q->under_way ? d->io->collect(q->aio, wait, QUEUE_DEPTH, e) : 0; /* interrupted: nothing was told */
    for (int i = 0; i < n; i++) {
        struct request *r = (struct request *)(uintptr_t)e[i].data;
        r->told = true;
        r->result = e[i].res;
    }
    if (n > 0) q->under_way -= n;
}
