# The CUDA backend over the emulator of this folder: libweft_simt.so, a test
# build of the library that the program opens at run time (kernels/device.h),
# and the emulator's own tests. Sources are found by name.
enable_language(CXX)

# What all of it is compiled with, beside the flags of all of ours (weft_base).
add_library(simt_flags INTERFACE)
target_include_directories(simt_flags INTERFACE
  ${CMAKE_SOURCE_DIR}/tests/simt/include)
target_compile_definitions(simt_flags INTERFACE WEFT_SIMT)
# Optimised in all builds: an emulated kernel is slow enough as it is.
target_compile_options(simt_flags INTERFACE -x c++ -std=c++17 -O2 -g
  -fno-exceptions -fno-rtti -Wno-unknown-pragmas)
target_link_libraries(simt_flags INTERFACE weft_base)
if(WEFT_SANITIZE MATCHES "address" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # Red zones around shared memory, too, which lies in a section of its own.
  target_compile_options(simt_flags INTERFACE -fsanitize-sections=simt_shared)
endif()

# Three parts, each compiled once: the kernels, what stands in for the toolkit,
# and the emulator.
file(GLOB kernels CONFIGURE_DEPENDS
  ${CMAKE_SOURCE_DIR}/kernels/cuda/*.cu ${CMAKE_SOURCE_DIR}/kernels/cuda/*.cc)
set_source_files_properties(${kernels} PROPERTIES LANGUAGE CXX)
file(GLOB emulator CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/simt/*.cc)
set(toolkit ${emulator})
list(FILTER toolkit INCLUDE REGEX "/(runtime|cublas|nccl)[a-z_]*\\.cc$")
list(REMOVE_ITEM emulator ${toolkit})
add_library(simt_kernels STATIC ${kernels})
add_library(simt_toolkit STATIC ${toolkit})
add_library(simt_emulator OBJECT ${emulator})
foreach(part simt_kernels simt_toolkit simt_emulator)
  target_link_libraries(${part} PRIVATE simt_flags)
  target_compile_options(${part} PRIVATE -fvisibility=hidden)
  set_target_properties(${part} PROPERTIES POSITION_INDEPENDENT_CODE ON)
endforeach()
if(WEFT_SANITIZE MATCHES "thread")
  # The scheduler tells the sanitizer what its fibers do; it is not one itself.
  # Nor does it call memmove for a loop, since that is looked at in any case.
  # Options of a source come after those of its target.
  set_source_files_properties(${toolkit} ${emulator} PROPERTIES COMPILE_OPTIONS
    "-fno-sanitize=thread;-fno-tree-loop-distribute-patterns")
endif()

set_target_properties(weft_base PROPERTIES POSITION_INDEPENDENT_CODE ON)
add_library(weft_simt SHARED $<TARGET_OBJECTS:simt_kernels>
  $<TARGET_OBJECTS:simt_toolkit> $<TARGET_OBJECTS:simt_emulator>)
set_target_properties(weft_simt PROPERTIES LINKER_LANGUAGE CXX)
target_link_libraries(weft_simt PRIVATE simt_flags)

# The stand-in for NCCL, opened by name as the real one is; and such as lack
# something, for the tests of that.
file(GLOB nccl CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/simt/nccl/*.cc)
set(WEFT_DEVICE_LIBRARIES weft_simt)
foreach(name nccl nccl_bare nccl_part)
  if(nccl)
    add_library(weft_simt_${name} SHARED ${nccl})
    target_link_libraries(weft_simt_${name} PRIVATE simt_flags weft_simt)
    string(TOUPPER ${name} upper)
    target_compile_definitions(weft_simt_${name} PRIVATE WEFT_SIMT_${upper})
    target_compile_options(weft_simt_${name} PRIVATE -fvisibility=hidden)
    set_target_properties(weft_simt_${name} PROPERTIES
      BUILD_RPATH "$ORIGIN" INSTALL_RPATH "$ORIGIN")
    list(APPEND WEFT_DEVICE_LIBRARIES weft_simt_${name})
  endif()
endforeach()

# All that tests on the emulator need; tests/tests.cmake adds those of kernels.
add_custom_target(simt_tests)
add_dependencies(simt_tests ${WEFT_DEVICE_LIBRARIES})

# The emulator's own tests, each a program. Of the kernels and the stand-ins a
# program gets what it calls: one with launches of its own (test/kit.h) gets no
# stand-in for streams.
pkg_check_modules(CHECK IMPORTED_TARGET check)
if(CHECK_FOUND)
  enable_testing()
  file(GLOB programs CONFIGURE_DEPENDS
    ${CMAKE_SOURCE_DIR}/tests/simt/test/test_*.cc)
  foreach(source ${programs})
    get_filename_component(name ${source} NAME_WE)
    add_executable(simt_${name} ${source} $<TARGET_OBJECTS:simt_emulator>)
    target_link_libraries(simt_${name} PRIVATE simt_kernels simt_toolkit
      simt_flags PkgConfig::CHECK)
    add_dependencies(simt_tests simt_${name})
    add_test(NAME simt.${name} COMMAND simt_${name})
    set_tests_properties(simt.${name} PROPERTIES LABELS simt TIMEOUT 300)
  endforeach()
endif()
