# The CUDA backend over tests/simt, which runs its kernels on a CPU: a test
# build of the library that the program opens at run time (kernels/device.h).
enable_language(CXX)
file(GLOB sources CONFIGURE_DEPENDS
  ${CMAKE_SOURCE_DIR}/kernels/cuda/*.cu ${CMAKE_SOURCE_DIR}/kernels/cuda/*.cc
  ${CMAKE_SOURCE_DIR}/tests/simt/*.cc)
add_library(weft_simt SHARED ${sources})
set_source_files_properties(${sources} PROPERTIES LANGUAGE CXX)
target_include_directories(weft_simt PRIVATE ${CMAKE_SOURCE_DIR}
  ${CMAKE_SOURCE_DIR}/tests/simt/include)
target_compile_definitions(weft_simt PRIVATE _GNU_SOURCE WEFT_SIMT)
# What the emulator cannot do without: kernels are slow enough as it is.
target_compile_options(weft_simt PRIVATE -x c++ -std=c++17 -O2 -g
  -fno-exceptions -fno-rtti -fvisibility=hidden -ffp-contract=off
  -Wall -Wextra -Wshadow -Wconversion -Wno-unknown-pragmas)
if(WEFT_SANITIZE)
  target_compile_options(weft_simt PRIVATE -fsanitize=${WEFT_SANITIZE}
    -fno-omit-frame-pointer)
  target_link_options(weft_simt PRIVATE -fsanitize=${WEFT_SANITIZE})
endif()
target_link_libraries(weft_simt PRIVATE weft_base)
