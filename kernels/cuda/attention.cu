/* attention.cu — attention block states on a CUDA device: one thread block a query row. */
#include <cuda_runtime.h>

#include "kernels/cuda/attend.h"
#include "kernels/cuda/device.h"

static __global__ void attend(const float *q, const void *k, const void *v, int32_t d, int row_type, float scale,
                              const uint64_t *rows, float *m, float *l, float *u)
{
    __shared__ kv_attend_shared s;
    const int i = (int)blockIdx.x, r = (int)threadIdx.x;
    kv_attend_row a = {q + (size_t)i * (size_t)d, k, v, d, (kv_type)row_type, scale, rows[i]};
    kv_attend_score(&a, r, &s);
    __syncthreads();
    kv_attend_max(&a, r, &s);
    __syncthreads();
    kv_attend_weight(&a, r, &s);
    __syncthreads();
    kv_attend_finish(&a, r, &s, m + i, l + i, u + (size_t)i * (size_t)d);
}

extern "C" uint64_t kv_visible_rows(const struct kv_attention *a, int32_t i, int32_t b);

/* One allocation holds q, the row masks, K, V and the states, in that order. */
int kv_cuda_attend_block(const struct kv_attention *a, int32_t b, struct kv_states out)
{
    const size_t d = (size_t)a->d_head, n = (size_t)a->n_q, block_bytes = KV_BLOCK_ROWS * d * (a->row_type == KV_F32 ? 4 : 2);
    const size_t q_bytes = (n * d * 4 + 15) / 16 * 16, mask_bytes = (n * 8 + 15) / 16 * 16, state_bytes = n * (d + 2) * 4;
    char *device = 0;
    uint64_t *mask = 0;
    cudaError_t e = cudaMallocHost(&mask, mask_bytes);
    if (e == cudaSuccess) e = cudaMalloc(&device, q_bytes + mask_bytes + 2 * block_bytes + state_bytes);
    if (e != cudaSuccess) goto done;
    for (size_t i = 0; i < n; i++) mask[i] = a->k[b] ? kv_visible_rows(a, (int32_t)i, b) : 0;
    e = cudaMemcpy2D(device, d * 4, a->q, a->q_stride * 4, d * 4, n, cudaMemcpyHostToDevice);
    if (e == cudaSuccess) e = cudaMemcpy(device + q_bytes, mask, n * 8, cudaMemcpyHostToDevice);
    if (e == cudaSuccess && a->k[b]) e = cudaMemcpy(device + q_bytes + mask_bytes, a->k[b], block_bytes, cudaMemcpyHostToDevice);
    if (e == cudaSuccess && a->k[b]) e = cudaMemcpy(device + q_bytes + mask_bytes + block_bytes, a->v[b], block_bytes, cudaMemcpyHostToDevice);
    if (e == cudaSuccess) {
        char *k = device + q_bytes + mask_bytes;
        float *m = (float *)(k + 2 * block_bytes), *l = m + n, *u = l + n;
        attend<<<(unsigned)n, KV_ATTEND_THREADS>>>((const float *)device, k, k + block_bytes, (int32_t)d, (int)a->row_type, a->scale,
                                                   (const uint64_t *)(device + q_bytes), m, l, u);
        e = cudaGetLastError();
        if (e == cudaSuccess) e = cudaMemcpy(out.m, m, n * 4, cudaMemcpyDeviceToHost);
        if (e == cudaSuccess) e = cudaMemcpy(out.l, l, n * 4, cudaMemcpyDeviceToHost);
        if (e == cudaSuccess) e = cudaMemcpy(out.u, u, n * d * 4, cudaMemcpyDeviceToHost);
    }
done:
    cudaFree(device);
    cudaFreeHost(mask);
    cudaGetLastError();
    return (int)e;
}
