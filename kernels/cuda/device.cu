/* device.cu — what the CUDA runtime knows of this machine's devices. The runtime is linked statically and loads the driver
 * itself, so a machine without one reports an error here instead of failing to start. */
#include <cuda_runtime.h>
#include <string.h>

#include "kernels/cuda/device.h"

int kv_cuda_device_count(void)
{
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess) {
        cudaGetLastError(); /* "no driver" must not surface in a later call */
        return 0;
    }
    return n;
}

bool kv_cuda_device_query(int index, struct kv_cuda_device *out)
{
    cudaDeviceProp p;
    size_t free_bytes = 0, total_bytes = 0;
    int before = 0;
    if (index < 0 || index >= kv_cuda_device_count() || cudaGetDeviceProperties(&p, index) != cudaSuccess) return false;
    if (cudaGetDevice(&before) != cudaSuccess || cudaSetDevice(index) != cudaSuccess) return false;
    bool known = cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess;
    cudaSetDevice(before);
    memset(out, 0, sizeof *out);
    memcpy(out->name, p.name, sizeof out->name - 1);
    out->memory_bytes = p.totalGlobalMem;
    out->free_bytes = known ? free_bytes : 0;
    out->compute_major = p.major, out->compute_minor = p.minor, out->multiprocessors = p.multiProcessorCount;
    return true;
}

int kv_cuda_host_register(void *at, size_t bytes)
{
    return (int)cudaHostRegister(at, bytes, cudaHostRegisterDefault);
}

void kv_cuda_host_unregister(void *at)
{
    cudaHostUnregister(at);
}

const char *kv_cuda_error_name(int error)
{
    return cudaGetErrorName((cudaError_t)error);
}
