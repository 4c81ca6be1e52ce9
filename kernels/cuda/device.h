/* device.h — CUDA devices seen from C: how many, which, and the kernels that run there. A build without nvcc, a machine
 * without a driver and a driver without a device all answer 0 devices. Any thread. */
#ifndef KV_CUDA_DEVICE_H
#define KV_CUDA_DEVICE_H

#include "kernels/kernels.h"

struct kv_cuda_device {
    char name[256];
    size_t memory_bytes, free_bytes;
    int compute_major, compute_minor, multiprocessors;
};

#ifdef __cplusplus
extern "C" {
#endif
#ifdef KV_CUDA
int kv_cuda_device_count(void);
bool kv_cuda_device_query(int index, struct kv_cuda_device *out);
/* kv_kernels.attend_block on the current device, for rows and states in host memory: copies there and back, so it serves
 * tests and first use, not speed. 0, or the CUDA error's number; kv_cuda_error_name says which. */
int kv_cuda_attend_block(const struct kv_attention *a, int32_t b, struct kv_states out);
const char *kv_cuda_error_name(int error);
/* Memory of the host that the device copies from and to directly. 0, or the CUDA error's number; what is registered is unregistered before it is unmapped. */
int kv_cuda_host_register(void *at, size_t bytes);
void kv_cuda_host_unregister(void *at);
#else
static inline int kv_cuda_device_count(void)
{
    return 0;
}
static inline bool kv_cuda_device_query(int index, struct kv_cuda_device *out)
{
    (void)index, (void)out;
    return false;
}
static inline int kv_cuda_host_register(void *at, size_t bytes)
{
    (void)at, (void)bytes;
    return 1;
}
static inline void kv_cuda_host_unregister(void *at)
{
    (void)at;
}
#endif
#ifdef __cplusplus
}
#endif

#endif
