# The program. Everything but main.c is a library, so that tests link it.
weft_library(weft_node FOLDERS node/rpc node/rpc/http node/obs node/app node/cluster
    node/fleet
  LINK weft_shard weft_router weft_proto weft_kernels weft_base
    PkgConfig::GRPC PkgConfig::PBC PkgConfig::MHD PkgConfig::JANSSON)
add_executable(weft node/main.c)
target_link_libraries(weft PRIVATE weft_node)
target_link_libraries(weft PRIVATE ${CMAKE_DL_LIBS})
if(TARGET weft_simt)
  # The library is opened at run time, and lies beside the program.
  add_dependencies(weft weft_simt)
  set_source_files_properties(${CMAKE_SOURCE_DIR}/node/app/backend.c
    PROPERTIES COMPILE_DEFINITIONS WEFT_SIMT_BACKEND)
endif()
set_target_properties(weft PROPERTIES
  RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})

# The commit that `weft version` tells; "unknown" outside a clone.
execute_process(COMMAND git -C ${CMAKE_SOURCE_DIR} rev-parse --short=12 HEAD
  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET
  RESULT_VARIABLE commit_failed)
if(commit_failed)
  set(commit unknown)
endif()
set_source_files_properties(${CMAKE_SOURCE_DIR}/node/app/version.c
  PROPERTIES COMPILE_DEFINITIONS WEFT_COMMIT="${commit}")
