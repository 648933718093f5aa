# The program. Everything but main.c is a library, so that tests link it.
weft_library(weft_node FOLDERS node/rpc node/rpc/http node/obs node/app
  LINK weft_shard weft_router weft_proto weft_kernels weft_base
    PkgConfig::GRPC PkgConfig::PBC PkgConfig::MHD PkgConfig::JANSSON)
add_executable(weft node/main.c)
target_link_libraries(weft PRIVATE weft_node)
set_target_properties(weft PROPERTIES
  RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
