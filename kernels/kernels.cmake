weft_library(weft_kernels FOLDERS kernels kernels/cpu LINK weft_base)

# Each path is compiled for its own instruction set, whatever the compiler's
# default is; which one runs is chosen at run time (kernels/cpu/dispatch.c).
# Kernels live on unrolled loops, so they are optimised as such even where the
# rest of a build asks for less; debug builds keep theirs.
set(paths path_scalar path_avx2 path_avx512 path_neon)
foreach(path ${paths})
  # Where variables live in sanitized, unrolled code takes gcc minutes to find
  # out, and a debugger little to do without.
  set(options "$<$<NOT:$<CONFIG:Debug>>:-O3>"
    "$<$<C_COMPILER_ID:GNU>:-fno-var-tracking>")
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
    if(path STREQUAL "path_avx2")
      list(APPEND options -mavx2 -mfma -mf16c)
    elseif(path STREQUAL "path_avx512")
      list(APPEND options -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma
        -mf16c -mprefer-vector-width=512)
    endif()
  endif()
  set_source_files_properties(kernels/cpu/${path}.c PROPERTIES
    COMPILE_OPTIONS "${options}")
endforeach()
