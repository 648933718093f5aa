# The messages on the wire: protobuf-c code made from the .proto files, and
# proto/*.c on top of it.
#
# protobuf-c gives a string field a NUL-terminated C string, which cannot hold
# a NUL, while a bytes field has a length. Both have the same form on the wire.
# So the C code is made from copies in which string fields are bytes fields, and
# clients are shown the originals through the embedded descriptors.
find_program(PROTOC_C protoc-c REQUIRED)
find_program(PROTOC protoc REQUIRED)

set(proto_dir ${CMAKE_BINARY_DIR}/proto)
set(proto_sources)
# v1alpha of reflection has the messages of v1.
foreach(name weft etcd_subset cluster grpc/health/v1/health
    grpc/reflection/v1/reflection)
  get_filename_component(dir ${name} DIRECTORY)
  set(copy ${proto_dir}/bytes/${name}.proto)
  add_custom_command(
    OUTPUT ${proto_dir}/${name}.pb-c.c ${proto_dir}/${name}.pb-c.h
    COMMAND ${CMAKE_COMMAND} -E make_directory ${proto_dir}/bytes/${dir}
    COMMAND sed -E "s/(^|[ {])string ([a-z_]+ = [0-9]+;)/\\1bytes \\2/"
      ${CMAKE_SOURCE_DIR}/proto/${name}.proto > ${copy}
    COMMAND ${PROTOC_C} --c_out=${proto_dir} -I ${proto_dir}/bytes ${copy}
    DEPENDS ${CMAKE_SOURCE_DIR}/proto/${name}.proto
    VERBATIM)
  list(APPEND proto_sources ${proto_dir}/${name}.pb-c.c)
endforeach()

set(proto_files weft.proto grpc/health/v1/health.proto
  grpc/reflection/v1/reflection.proto
  grpc/reflection/v1alpha/reflection.proto)
list(TRANSFORM proto_files PREPEND ${CMAKE_SOURCE_DIR}/proto/
  OUTPUT_VARIABLE proto_paths)
add_custom_command(
  OUTPUT ${proto_dir}/descriptors.c
  COMMAND ${PROTOC} --include_imports
    --descriptor_set_out=${proto_dir}/descriptors.bin
    -I ${CMAKE_SOURCE_DIR}/proto ${proto_paths}
  COMMAND ${CMAKE_COMMAND} -D IN=${proto_dir}/descriptors.bin
    -D OUT=${proto_dir}/descriptors.c -D NAME=weft_descriptors
    -P ${CMAKE_SOURCE_DIR}/proto/embed.cmake
  DEPENDS ${proto_paths} ${CMAKE_SOURCE_DIR}/proto/embed.cmake
  VERBATIM)

# Generated code is not held to our warnings.
add_library(weft_proto_gen STATIC ${proto_sources} ${proto_dir}/descriptors.c)
target_include_directories(weft_proto_gen SYSTEM PUBLIC ${proto_dir})
target_include_directories(weft_proto_gen PRIVATE ${CMAKE_SOURCE_DIR})
target_link_libraries(weft_proto_gen PUBLIC PkgConfig::PBC)

weft_library(weft_proto FOLDERS proto LINK weft_base weft_proto_gen)
