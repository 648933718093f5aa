# The CUDA backend over tests/simt, which runs its kernels on a CPU.
include(tests/simt/simt.cmake)
