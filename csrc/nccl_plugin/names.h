// Translates NCCL's names of operations, data types, algorithms and protocols
// to the codes in the trace.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "core/record.h"

namespace commprof::nccl {

// The name under which NCCL knows the plugin.
inline constexpr const char* kPluginName = "commprof";

struct FuncName {
  std::string_view nccl;
  Op op;
};

// Operations that a kernel carries out. Since NCCL 2.28 there are also calls of
// AlltoAll, Gather and Scatter; they run the kernels of sends and receives.
inline constexpr std::array<FuncName, 7> kFuncs = {{
    {"AllReduce", Op::kAllReduce},
    {"AllGather", Op::kAllGatherIntoTensor},
    {"ReduceScatter", Op::kReduceScatterTensor},
    {"Broadcast", Op::kBroadcast},
    {"Reduce", Op::kReduce},
    {"Send", Op::kSend},
    {"Recv", Op::kRecv},
}};

inline Op opOf(const char* func) noexcept {
  for (const FuncName& known : kFuncs) {
    if (func != nullptr && known.nccl == func) {
      return known.op;
    }
  }
  return Op::kOther;
}

#define COMMPROF_TEXT(name, text) std::string_view(text),
inline constexpr std::string_view kAlgorithms[] = {
    COMMPROF_NCCL_ALGORITHMS(COMMPROF_TEXT)};
inline constexpr std::string_view kProtocols[] = {
    COMMPROF_NCCL_PROTOCOLS(COMMPROF_TEXT)};
#undef COMMPROF_TEXT

// Returns the index of a word in a table; 0 if the word is missing.
template <size_t size>
uint8_t codeIn(
    const std::string_view (&table)[size],
    const char* word) noexcept {
  for (size_t i = 1; i < size; ++i) {
    if (word != nullptr && table[i] == word) {
      return uint8_t(i);
    }
  }
  return 0;
}

struct DatatypeName {
  std::string_view nccl;
  std::string_view torch; // as c10::toString writes it
  uint8_t bytes;
};

// The index is the code in the trace.
inline constexpr std::array<DatatypeName, 13> kDatatypes = {{
    {"", "Unknown", 0},
    {"ncclInt8", "Char", 1},
    {"ncclUint8", "Byte", 1},
    {"ncclInt32", "Int", 4},
    {"ncclUint32", "UInt32", 4},
    {"ncclInt64", "Long", 8},
    {"ncclUint64", "UInt64", 8},
    {"ncclFloat16", "Half", 2},
    {"ncclFloat32", "Float", 4},
    {"ncclFloat64", "Double", 8},
    {"ncclBfloat16", "BFloat16", 2},
    {"ncclFloat8e4m3", "Float8_e4m3fn", 1},
    {"ncclFloat8e5m2", "Float8_e5m2", 1},
}};

// Returns the code of a type; 0 if it is not known.
inline uint8_t datatypeOf(const char* datatype) noexcept {
  for (size_t i = 1; i < kDatatypes.size(); ++i) {
    if (datatype != nullptr && kDatatypes[i].nccl == datatype) {
      return uint8_t(i);
    }
  }
  return 0;
}

} // namespace commprof::nccl
