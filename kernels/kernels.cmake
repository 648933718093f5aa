weft_library(weft_kernels FOLDERS kernels kernels/cpu LINK weft_base)
