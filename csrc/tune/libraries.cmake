# What compressors and collectives in shared memory need, without torch; included by CMakeLists.txt
# at the root.

# Compression kernels: each *.simd.cpp once per instruction set, picked at run time
# (tune/kernels/level.h). No contraction: all levels must round alike.
file(GLOB_RECURSE KERNEL_SOURCES CONFIGURE_DEPENDS csrc/tune/kernels/*.cpp)
set(SIMD_SOURCES ${KERNEL_SOURCES})
list(FILTER SIMD_SOURCES INCLUDE REGEX "\\.simd\\.cpp$")
list(REMOVE_ITEM KERNEL_SOURCES ${SIMD_SOURCES})
set(FAST -O3)
set(SIMD_FLAGS_scalar -O2)
if(COMMPROF_SANITIZE OR CMAKE_BUILD_TYPE STREQUAL "Debug")
  set(FAST -O1) # a third of the time to compile; nobody times these
  set(SIMD_FLAGS_scalar -O1)
endif()
set(SIMD_FLAGS_avx2 ${FAST} -mavx2 -mfma -mf16c)
set(SIMD_FLAGS_avx512 ${SIMD_FLAGS_avx2} -mavx512f -mavx512bw -mavx512vl -mavx512dq)
set(SIMD_LEVELS scalar)
add_library(commprof_kernels STATIC ${KERNEL_SOURCES})
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  list(APPEND SIMD_LEVELS avx2 avx512)
  target_compile_definitions(commprof_kernels PUBLIC COMMPROF_X86)
endif()
foreach(level ${SIMD_LEVELS})
  add_library(commprof_kernels_${level} OBJECT ${SIMD_SOURCES})
  target_include_directories(commprof_kernels_${level} PRIVATE csrc)
  target_compile_definitions(commprof_kernels_${level} PRIVATE
    COMMPROF_SIMD_LEVEL=${level} $<TARGET_PROPERTY:commprof_kernels,INTERFACE_COMPILE_DEFINITIONS>)
  target_compile_options(commprof_kernels_${level} PRIVATE
    -Wall -Wextra -Wno-unused-function -ffp-contract=off ${SIMD_FLAGS_${level}})
  target_sources(commprof_kernels PRIVATE $<TARGET_OBJECTS:commprof_kernels_${level}>)
endforeach()
target_compile_options(commprof_kernels PRIVATE -Wall -Wextra -ffp-contract=off)
target_link_libraries(commprof_kernels PUBLIC commprof_base)

# Compressors over these kernels: schemes and exchanges, for any transport.
file(GLOB COMPRESS_SOURCES CONFIGURE_DEPENDS csrc/tune/compress/*.cpp csrc/tune/compress/codecs/*.cpp
     csrc/tune/compress/exchange/*.cpp csrc/tune/compress/exchange/messages/*.cpp
     csrc/tune/compress/schemes/*.cpp)
add_library(commprof_compress STATIC ${COMPRESS_SOURCES})
commprof_unity(commprof_compress)
target_compile_options(commprof_compress PRIVATE -Wall -Wextra ${FAST} -ffp-contract=off)
target_link_libraries(commprof_compress PUBLIC commprof_shm)

# Collectives through memory that the ranks of one host share.
file(GLOB SHM_SOURCES CONFIGURE_DEPENDS csrc/tune/shm/*.cpp)
add_library(commprof_shm STATIC ${SHM_SOURCES})
commprof_unity(commprof_shm)
set_source_files_properties(csrc/tune/shm/slices.cpp PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
target_compile_options(commprof_shm PRIVATE -Wall -Wextra)
target_link_libraries(commprof_shm PUBLIC commprof_kernels rt)

# The transport that compressors have of their own.
file(GLOB SOCKET_SOURCES CONFIGURE_DEPENDS csrc/tune/compress/sockets/*.cpp)
add_library(commprof_sockets STATIC ${SOCKET_SOURCES})
commprof_unity(commprof_sockets)
target_compile_options(commprof_sockets PRIVATE -Wall -Wextra)
target_link_libraries(commprof_sockets PUBLIC commprof_compress)

set(TUNE_LIBRARIES commprof_sockets commprof_shm)
