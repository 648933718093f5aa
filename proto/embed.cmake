# cmake -D IN=FILE -D OUT=FILE.c -D NAME=NAME -P embed.cmake
# Writes the bytes of IN as a C array NAME and its size NAME_bytes.
file(READ ${IN} hex HEX)
string(LENGTH "${hex}" digits)
math(EXPR bytes "${digits} / 2")
string(REGEX REPLACE "(................................)" "\\1\n" hex "${hex}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," hex "${hex}")
file(WRITE ${OUT}
  "#include \"proto/descriptors.h\"\n\n"
  "const unsigned char ${NAME}[] = {\n${hex}\n};\n"
  "const size_t ${NAME}_bytes = ${bytes};\n")
