# The CUDA backend for GPUs: libweft_cuda.so, which the program opens at run
# time. Needs a CUDA tool kit, and no driver and no device.
#
#   -DWEFT_CUDA=ON       by nvcc of CUDACXX, CUDA_HOME, PATH or /usr/local/cuda
#   -DWEFT_CUDA=FOLDER   the root of a tool kit
#
# nvcc is called by commands of our own: the same sources are C++ in the target
# weft_simt, and what is compiled for which architecture is said here alone.
set(WEFT_CUDA_ARCHITECTURES "80;86;87;89;90a;100a;103a;110;120a;121a"
  CACHE STRING "compute capabilities that libweft_cuda.so has kernels for")
set(WEFT_CUDA_FLAGS "" CACHE STRING "more flags of nvcc, such as -lineinfo")
option(WEFT_CUDA_DENSE "large products by cuBLASLt: kernels/cuda/dense.h" OFF)

enable_language(CXX)

# --- The tool kit -----------------------------------------------------------

set(nvcc)
if(EXISTS "${WEFT_CUDA}/bin/nvcc")
  get_filename_component(nvcc ${WEFT_CUDA}/bin/nvcc ABSOLUTE)
elseif(WEFT_CUDA STREQUAL "ON" AND EXISTS "$ENV{CUDACXX}")
  set(nvcc $ENV{CUDACXX})
elseif(WEFT_CUDA STREQUAL "ON")
  find_program(WEFT_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH
    PATHS /usr/local/cuda PATH_SUFFIXES bin)
  set(nvcc ${WEFT_NVCC})
endif()
if(NOT nvcc)
  message(FATAL_ERROR "WEFT_CUDA=${WEFT_CUDA}: no CUDA tool kit there; wanted "
    "is ON with an nvcc to be found, or a folder with bin/nvcc")
endif()
get_filename_component(toolkit ${nvcc} DIRECTORY)
get_filename_component(toolkit ${toolkit} DIRECTORY)
execute_process(COMMAND ${nvcc} --version OUTPUT_VARIABLE version)
string(REGEX MATCH "release ([0-9]+\\.[0-9]+)" version "${version}")
set(version ${CMAKE_MATCH_1})
if(NOT version VERSION_GREATER_EQUAL 13.0)
  message(FATAL_ERROR "${nvcc} is of CUDA '${version}': 13.0 or later is needed")
endif()
set(places HINTS ${toolkit} ${toolkit}/targets/${CMAKE_SYSTEM_PROCESSOR}-linux
  ${toolkit}/targets/sbsa-linux NO_DEFAULT_PATH)
unset(cuda_headers CACHE)
unset(blas_headers CACHE)
unset(cudart CACHE)
find_path(cuda_headers cuda_runtime.h ${places} PATH_SUFFIXES include)
find_path(blas_headers cublasLt.h ${places} PATH_SUFFIXES include)
find_library(cudart cudart_static ${places} PATH_SUFFIXES lib64 lib)
foreach(part cuda_headers blas_headers cudart)
  if(NOT ${part})
    message(FATAL_ERROR "the CUDA tool kit at ${toolkit} has no ${part} "
      "(cuda_runtime.h, cublasLt.h, libcudart_static.a)")
  endif()
endforeach()
message(STATUS "CUDA ${version} at ${toolkit} for ${WEFT_CUDA_ARCHITECTURES}")

# --- Sources ----------------------------------------------------------------

# Compiled the same for all architectures, but for those of Hopper's own
# instructions, which are left to sm_90a. Where that is not asked for they are
# empty kernels that nobody launches.
file(GLOB device_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/kernels/cuda/*.cu)
file(GLOB host_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/kernels/cuda/*.cc)
if(NOT WEFT_CUDA_DENSE)
  list(FILTER device_sources EXCLUDE REGEX "/dense\\.cu$")
endif()

# No contraction, no flushing of subnormals, divisions and roots to the nearest:
# what a kernel computes is what its source says, here and on the emulator.
set(nvcc_flags -std=c++17 -O3 -fmad=false -ftz=false -prec-div=true
  -prec-sqrt=true -Werror all-warnings --diag-suppress 20012
  -ccbin ${CMAKE_CXX_COMPILER}
  -Xcompiler -fPIC,-O2,-fvisibility=hidden,-fno-exceptions,-fno-rtti
  -Xcompiler -ffp-contract=off,-Wall,-Wextra,-Wno-unknown-pragmas
  -D_GNU_SOURCE -I${CMAKE_SOURCE_DIR} -isystem ${blas_headers})
if(WEFT_CUDA_DENSE)
  list(APPEND nvcc_flags -DWEFT_CUDA_DENSE)
endif()
separate_arguments(more UNIX_COMMAND "${WEFT_CUDA_FLAGS}")
list(APPEND nvcc_flags ${more})

# One pass for each architecture, and nothing that a driver would compile: an
# architecture that is not in the list is refused by name (device.cc).
function(weft_cuda_passes out)
  set(passes)
  foreach(arch ${ARGN})
    list(APPEND passes -gencode=arch=compute_${arch},code=sm_${arch})
  endforeach()
  set(${out} ${passes} PARENT_SCOPE)
endfunction()

set(objects)
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/kernels-cuda)
foreach(source ${device_sources})
  get_filename_component(name ${source} NAME_WE)
  set(object ${CMAKE_BINARY_DIR}/kernels-cuda/${name}.o)
  set(archs ${WEFT_CUDA_ARCHITECTURES})
  if(name MATCHES "_hopper$")
    list(FILTER archs INCLUDE REGEX "^90a$")
    if(NOT archs)
      list(GET WEFT_CUDA_ARCHITECTURES 0 archs)
    endif()
  endif()
  weft_cuda_passes(passes ${archs})
  add_custom_command(OUTPUT ${object}
    COMMAND ${nvcc} -c ${nvcc_flags} ${passes} -MD -MF ${object}.d
      -o ${object} ${source}
    DEPENDS ${source} DEPFILE ${object}.d
    COMMENT "nvcc ${name}.cu" VERBATIM)
  list(APPEND objects ${object})
endforeach()

# --- The library ------------------------------------------------------------

string(REPLACE ";" ", sm_" list "sm_${WEFT_CUDA_ARCHITECTURES}")
add_library(weft_cuda SHARED ${host_sources} ${objects})
set_source_files_properties(${objects} PROPERTIES EXTERNAL_OBJECT ON)
set_target_properties(weft_cuda PROPERTIES LINKER_LANGUAGE CXX
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
target_include_directories(weft_cuda PRIVATE ${CMAKE_SOURCE_DIR})
target_include_directories(weft_cuda SYSTEM PRIVATE
  ${cuda_headers} ${blas_headers})
target_compile_definitions(weft_cuda PRIVATE _GNU_SOURCE
  WEFT_CUDA_ARCHITECTURES="${list}" $<$<BOOL:${WEFT_CUDA_DENSE}>:WEFT_CUDA_DENSE>)
target_compile_options(weft_cuda PRIVATE -std=c++17 -O2
  -fno-exceptions -fno-rtti -fvisibility=hidden -ffp-contract=off
  -Wall -Wextra -Wshadow -Wconversion)
set_target_properties(weft_base PROPERTIES POSITION_INDEPENDENT_CODE ON)
# The runtime comes with the library. NCCL is opened when it is wanted, the
# driver by the runtime: neither has to be there for the library to load.
target_link_libraries(weft_cuda PRIVATE weft_base ${cudart}
  Threads::Threads ${CMAKE_DL_LIBS} rt m)
target_link_options(weft_cuda PRIVATE -Wl,--exclude-libs,ALL -Wl,--as-needed
  -Wl,--no-undefined)
if(WEFT_CUDA_DENSE)
  find_library(WEFT_CUBLASLT cublasLt ${places} PATH_SUFFIXES lib64 lib)
  target_link_libraries(weft_cuda PRIVATE ${WEFT_CUBLASLT})
endif()

# All that tests on a device need (tests/gpu); tests/tests.cmake adds those of
# kernels.
list(APPEND WEFT_DEVICE_LIBRARIES weft_cuda)
add_custom_target(cuda_tests)
add_dependencies(cuda_tests weft_cuda)
