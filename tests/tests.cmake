# Every tests/{unit,kernel,model}/test_NAME.c is a program of its own, so that
# a crash or a hang costs one test; tests/support holds what they share.
pkg_check_modules(CHECK IMPORTED_TARGET check)
if(CHECK_FOUND AND NOT WEFT_FUZZ)
  enable_testing()
  file(GLOB support CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/support/*.c)
  add_library(weft_support STATIC ${support})
  target_link_libraries(weft_support PUBLIC weft_node PkgConfig::CHECK)
  foreach(kind unit kernel model)
    file(GLOB programs CONFIGURE_DEPENDS
      ${CMAKE_SOURCE_DIR}/tests/${kind}/test_*.c)
    foreach(source ${programs})
      get_filename_component(name ${source} NAME_WE)
      add_executable(${name} ${source})
      target_link_libraries(${name} PRIVATE weft_support)
      add_test(NAME ${kind}.${name} COMMAND ${name}
        WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
      set_tests_properties(${kind}.${name} PROPERTIES LABELS ${kind}
        SKIP_RETURN_CODE 77 TIMEOUT 600
        ENVIRONMENT "TSAN_OPTIONS=ignore_noninstrumented_modules=1")
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
