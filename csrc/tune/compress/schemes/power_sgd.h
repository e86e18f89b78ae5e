// PowerSGD (Vogels, Karimireddy, Jaggi, NeurIPS 2019): approximates a matrix M
// by a product P Q of low rank, if P and Q have at most half as many values as
// M. One power iteration per step improves the Q of the previous step. Each
// bucket takes two all-reduces: first P = M Q' together with all values that
// are not factorised, then Q = P' M with P's columns orthonormalised.
#pragma once

#include <map>
#include <vector>

#include "tune/compress/schemes/scheme.h"
#include "tune/compress/scratch.h"

namespace commprof::compress {

class PowerSgd : public Scheme {
 public:
  PowerSgd(int rank, uint64_t seed);

  uint32_t k(size_t n) const override; // rank of the factors
  void run(Job& job) override;
  void addSent(const Sent& sent, std::span<const Slot> slots, float* dense)
      override;
  uint64_t wireBytes(std::span<const Slot> slots, size_t n, int world)
      const override;

  void save(std::vector<ParameterState>& state) const override;
  bool load(const ParameterState& state) override;
  void clear() override;

 private:
  struct Matrix {
    uint32_t parameter = 0;
    size_t offset = 0; // within the bucket, in values
    size_t rows = 0;
    size_t cols = 0;
    int rank = 0; // at most the smaller dimension
    size_t p = 0; // offset of its P among all P, in values
    size_t q = 0; // offset of its Q among all Q, in values
  };
  struct Range { // values that are sent unchanged
    size_t offset = 0;
    size_t count = 0;
    size_t raw = 0; // offset in the first all-reduce
  };
  // The first all-reduce contains the raw values and all P. The second
  // all-reduce contains all Q.
  struct Plan {
    std::vector<Matrix> matrices;
    std::vector<Range> ranges;
    size_t raw = 0; // number of raw values
    size_t p = 0; // number of values in all P
    size_t q = 0; // number of values in all Q
  };

  Plan planOf(std::span<const Slot> slots, size_t n) const;
  void project(const Job& job, const Plan& plan, float* residual);
  void keep(const Plan& plan, Sent& sent) const;
  void decode(const Job& job, const Plan& plan, float* residual);
  std::vector<float>& startOf(const Matrix& matrix, uint64_t step);
  void warmStart(const Matrix& matrix, const float* q, uint64_t step);
  void fillRandomly(const Matrix& matrix, uint64_t step, int row, float* q);

  int rank_;
  uint64_t seed_;
  std::map<uint32_t, std::vector<float>> q_; // rank x cols, by parameter
  Scratch first_; // raw values and P
  Scratch second_; // Q
  Scratch local_; // this rank's own Q
  Scratch kept_raw_; // this rank's own raw values
  Scratch no_residual_;
};

} // namespace commprof::compress
