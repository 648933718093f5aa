# The CUDA backend over tests/simt, which runs its kernels on a CPU: a test
# build of the library that the program opens at run time (kernels/device.h).
enable_language(CXX)
file(GLOB kernels CONFIGURE_DEPENDS
  ${CMAKE_SOURCE_DIR}/kernels/cuda/*.cu ${CMAKE_SOURCE_DIR}/kernels/cuda/*.cc)
file(GLOB emulator CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/simt/*.cc)
add_library(weft_simt SHARED ${kernels} ${emulator})
set_source_files_properties(${kernels} PROPERTIES LANGUAGE CXX)
target_include_directories(weft_simt PRIVATE ${CMAKE_SOURCE_DIR}
  ${CMAKE_SOURCE_DIR}/tests/simt/include)
target_compile_definitions(weft_simt PRIVATE _GNU_SOURCE WEFT_SIMT)
# Optimised in all builds: an emulated kernel is slow enough as it is.
target_compile_options(weft_simt PRIVATE -x c++ -std=c++17 -O2 -g
  -fno-exceptions -fno-rtti -fvisibility=hidden -ffp-contract=off
  -Wall -Wextra -Wshadow -Wconversion -Wno-unknown-pragmas)
if(WEFT_SANITIZE)
  target_compile_options(weft_simt PRIVATE -fsanitize=${WEFT_SANITIZE}
    -fno-omit-frame-pointer)
  target_link_options(weft_simt PRIVATE -fsanitize=${WEFT_SANITIZE})
endif()
if(WEFT_SANITIZE MATCHES "address" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # Red zones around shared memory, too, which lies in a section of its own.
  target_compile_options(weft_simt PRIVATE -fsanitize-sections=simt_shared)
endif()
if(WEFT_SANITIZE MATCHES "thread")
  # The scheduler tells the sanitizer what its fibers do; it is not one itself.
  set_source_files_properties(${emulator} PROPERTIES
    COMPILE_OPTIONS -fno-sanitize=thread)
endif()
set_target_properties(weft_base PROPERTIES POSITION_INDEPENDENT_CODE ON)
target_link_libraries(weft_simt PRIVATE weft_base m)
