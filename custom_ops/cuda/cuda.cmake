# libonnxq_cuda: the whole library again, with the operators of the CUDA provider. One domain can be registered only once
# with a session, so it holds the processor's operators too, and is registered instead of the other one.
include(CheckLanguage)
# Four architectures take many minutes to compile: nobody waits for them who only wanted to install a tool.
if(ONNXQ_CUDA STREQUAL "AUTO" AND NOT EXISTS /dev/nvidiactl)
  message(STATUS "No NVIDIA GPU here: onnxq is built for processors only, -DONNXQ_CUDA=ON builds for GPUs all the same")
  return()
endif()
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
  if(ONNXQ_CUDA STREQUAL "AUTO")
    set(CMAKE_CUDA_ARCHITECTURES native)
  else()
    set(CMAKE_CUDA_ARCHITECTURES 80-real 86-real 89-real 90) # and code for what comes after
  endif()
endif()
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  if(NOT ONNXQ_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "ONNXQ_CUDA is ON, but no CUDA compiler was found: install nvcc, or set CUDACXX to it")
  endif()
  message(STATUS "No CUDA compiler: onnxq is built for processors only")
  return()
endif()

set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
enable_language(CUDA)

get_target_property(sources onnxq_native SOURCES)
add_library(onnxq_cuda SHARED ${sources}
  cuda/c_abi.cu cuda/cublas.cu cuda/gemv.cu cuda/matmul.cu cuda/nodes.cc cuda/platform.cu cuda/rows.cu cuda/runtime_abi.cu
  cuda/tensor_int4.cu cuda/tensor_int8.cu cuda/tensor_table.cu)
target_compile_definitions(onnxq_cuda PRIVATE ONNXQ_CUDA)
target_compile_options(onnxq_cuda PRIVATE
  $<$<COMPILE_LANGUAGE:CXX>:-O3 -fno-trapping-math -Wall -Wextra -Werror>
  $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings -Xcompiler=-Wall,-Wextra>)
target_include_directories(onnxq_cuda PRIVATE ${CMAKE_CURRENT_BINARY_DIR})
target_link_libraries(onnxq_cuda PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
get_target_property(link_options onnxq_native LINK_OPTIONS)
if(link_options)
  target_link_options(onnxq_cuda PRIVATE ${link_options})
endif()
install(TARGETS onnxq_cuda LIBRARY DESTINATION onnxq RUNTIME DESTINATION onnxq)
