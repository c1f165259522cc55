# The GPU kernels. Only they need the CUDA toolkit, at build time: libluwu loads NVIDIA's driver
# when a caller first names GPU memory. Sets LUWU_NVCC, and LUWU_KERNEL_IMAGE where there are
# kernels.
set(LUWU_CUDA AUTO CACHE STRING "GPU kernels: AUTO (when nvcc is found), ON (required) or OFF")
set_property(CACHE LUWU_CUDA PROPERTY STRINGS AUTO ON OFF)
set(LUWU_CUDA_ARCHITECTURES 80 90 100 CACHE STRING "GPU generations that kernels are compiled for")

set(LUWU_NVCC)
set(no_kernels "LUWU_CUDA is OFF")  # why not; empty: there are
if(NOT LUWU_CUDA STREQUAL "OFF")
  set(no_kernels)
  find_program(LUWU_NVCC_PROGRAM nvcc
    HINTS ENV CUDAToolkit_ROOT ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES bin)
  if(LUWU_NVCC_PROGRAM)
    execute_process(COMMAND ${LUWU_NVCC_PROGRAM} --list-gpu-arch OUTPUT_VARIABLE known)
    foreach(generation IN LISTS LUWU_CUDA_ARCHITECTURES)
      if(NOT known MATCHES "compute_${generation}[^0-9]")
        set(no_kernels "${LUWU_NVCC_PROGRAM} does not know sm_${generation}")
      endif()
    endforeach()
  else()
    set(no_kernels "there is no nvcc")
  endif()
  if(NOT no_kernels)
    set(LUWU_NVCC ${LUWU_NVCC_PROGRAM})
    set(LUWU_KERNEL_IMAGE ${PROJECT_BINARY_DIR}/client/luwu_kernels.fatbin)
  elseif(LUWU_CUDA STREQUAL "ON")
    message(FATAL_ERROR "LUWU_CUDA=ON, but ${no_kernels}: install a newer CUDA toolkit (12.8 for "
      "sm_100), name its folder in CUDAToolkit_ROOT, or set LUWU_CUDA_ARCHITECTURES")
  else()
    message(STATUS "libluwu is built without GPU kernels, and they are not compiled here: "
      "${no_kernels}")
  endif()
endif()

# luwu_fatbin(OUTPUT file SOURCE file.cu [DEPENDS header ...])
# Machine code for each generation, and PTX of the oldest for those that are not in the list.
function(luwu_fatbin)
  cmake_parse_arguments(ARG "" "OUTPUT;SOURCE" "DEPENDS" ${ARGN})
  set(code)
  foreach(generation IN LISTS LUWU_CUDA_ARCHITECTURES)
    list(APPEND code -gencode arch=compute_${generation},code=sm_${generation})
  endforeach()
  list(GET LUWU_CUDA_ARCHITECTURES 0 oldest)
  list(APPEND code -gencode arch=compute_${oldest},code=compute_${oldest})
  add_custom_command(OUTPUT ${ARG_OUTPUT}
    COMMAND ${LUWU_NVCC} -std=c++17 -O3 --fmad=false -Werror all-warnings ${code}
      -I${PROJECT_SOURCE_DIR} -fatbin -o ${ARG_OUTPUT} ${ARG_SOURCE}
    DEPENDS ${ARG_SOURCE} ${ARG_DEPENDS}
    COMMENT "GPU kernels for ${LUWU_CUDA_ARCHITECTURES}" VERBATIM)
endfunction()
