#include "torch/device/cuda_capture.h"

#include <exception>

#include "torch/device/loaded_symbol.h"

namespace commprof {

namespace {

struct Cuda {
  // Type of c10::cuda::CUDAStream::stream(). A CUDAStream consists of one
  // c10::Stream.
  using HandleOf = void* (*)(const c10::Stream* stream);
  using IsCapturing = int (*)(void* handle, int* status);
  using LastError = int (*)();

  HandleOf handle_of = nullptr;
  IsCapturing is_capturing = nullptr;
  LastError take_last_error = nullptr;

  Cuda() noexcept {
    try {
      handle_of = reinterpret_cast<HandleOf>(
          loadedSymbol("_ZNK3c104cuda10CUDAStream6streamEv", {"libc10_cuda"}));
      is_capturing = reinterpret_cast<IsCapturing>(
          loadedSymbol("cudaStreamIsCapturing", {"libcudart"}));
      take_last_error = reinterpret_cast<LastError>(
          loadedSymbol("cudaGetLastError", {"libcudart"}));
    } catch (const std::exception&) { // out of memory: treated as not found
    }
  }
};

const Cuda& cuda() noexcept {
  static const Cuda c;
  return c;
}

} // namespace

bool cudaReportsCapture(c10::DeviceType type) noexcept {
  return type == c10::DeviceType::CUDA && cuda().handle_of != nullptr &&
      cuda().is_capturing != nullptr && cuda().take_last_error != nullptr;
}

bool isCapturedByCuda(c10::Stream stream) {
  int status = 0;
  if (cuda().is_capturing(cuda().handle_of(&stream), &status) != 0) {
    // Clears the error, which torch would otherwise report after a launch.
    cuda().take_last_error();
    return true;
  }
  return status != 0;
}

} // namespace commprof
