# Every tests/{unit,kernel,model}/test_NAME.c is a program of its own, so that
# a crash or a hang costs one test; tests/support holds what they share.
pkg_check_modules(CHECK IMPORTED_TARGET check)
if(CHECK_FOUND AND NOT WEFT_FUZZ)
  enable_testing()
  file(GLOB support CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/support/*.c)
  add_library(weft_support STATIC ${support})
  target_link_libraries(weft_support PUBLIC weft_node PkgConfig::CHECK)
  set(kinds unit kernel model)
  if(WEFT_DEVICE_LIBRARIES)
    list(APPEND kinds cuda)
  endif()
  # What programs of tests/cuda share is of no use without a device.
  file(GLOB shared CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/cuda/*.c)
  list(FILTER shared EXCLUDE REGEX "/test_[a-z_]*\\.c$")
  if(WEFT_DEVICE_LIBRARIES AND shared)
    add_library(weft_cuda_support STATIC ${shared})
    target_link_libraries(weft_cuda_support PUBLIC weft_support)
  endif()
  foreach(kind ${kinds})
    file(GLOB programs CONFIGURE_DEPENDS
      ${CMAKE_SOURCE_DIR}/tests/${kind}/test_*.c)
    foreach(source ${programs})
      get_filename_component(name ${source} NAME_WE)
      add_executable(${name} ${source})
      target_link_libraries(${name} PRIVATE weft_support)
      if(kind STREQUAL "cuda")
        add_dependencies(${name} ${WEFT_DEVICE_LIBRARIES})
        foreach(all simt_tests cuda_tests)
          if(TARGET ${all})
            add_dependencies(${all} ${name})
          endif()
        endforeach()
        if(TARGET weft_cuda_support)
          target_link_libraries(${name} PRIVATE weft_cuda_support)
        endif()
      endif()
      add_test(NAME ${kind}.${name} COMMAND ${name}
        WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
      set_tests_properties(${kind}.${name} PROPERTIES LABELS ${kind}
        SKIP_RETURN_CODE 77 TIMEOUT 600
        ENVIRONMENT "TSAN_OPTIONS=ignore_noninstrumented_modules=1;ASAN_OPTIONS=intercept_tls_get_addr=0")
      # The same on a device with the kernels of *_hopper.cuh, which the emulator
      # plays.
      if(TARGET weft_simt AND name MATCHES "^test_cuda_(attn|gemm|grouped|model)$")
        add_test(NAME ${kind}.${name}_sm90 COMMAND ${name}
          WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
        set_tests_properties(${kind}.${name}_sm90 PROPERTIES LABELS ${kind}
          SKIP_RETURN_CODE 77 TIMEOUT 600
          ENVIRONMENT "WEFT_SIMT_SM=90;TSAN_OPTIONS=ignore_noninstrumented_modules=1;ASAN_OPTIONS=intercept_tls_get_addr=0")
      endif()
    endforeach()
  endforeach()
endif()

# The cluster in virtual time: see tests/cluster/sim/sim.h.
if(NOT WEFT_FUZZ)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/cluster/sim/*.c)
  add_executable(test_cluster_sim ${sources})
  target_link_libraries(test_cluster_sim PRIVATE weft_node)
  if(CHECK_FOUND)
    add_test(NAME cluster.sim COMMAND test_cluster_sim)
    set_tests_properties(cluster.sim PROPERTIES LABELS cluster TIMEOUT 600)
  endif()
endif()

if(WEFT_FUZZ)
  file(GLOB programs CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/fuzz/fuzz_*.c)
  foreach(source ${programs})
    get_filename_component(name ${source} NAME_WE)
    add_executable(${name} ${source})
    target_link_libraries(${name} PRIVATE weft_node)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  endforeach()
endif()

file(GLOB programs CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/bench/bench_*.c)
foreach(source ${programs})
  get_filename_component(name ${source} NAME_WE)
  add_executable(${name} ${source})
  target_link_libraries(${name} PRIVATE weft_node)
endforeach()

file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/bench/device/*.c)
add_executable(bench_device ${sources})
target_link_libraries(bench_device PRIVATE weft_kernels weft_base ${CMAKE_DL_LIBS} m)
