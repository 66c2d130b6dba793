#include <algorithm>
#include <vector>

#include "testing/bindings/cuda_internals.h"

namespace turbomind::cuda {

double graph_seconds(CudaOperators& ops, int calls, int rounds, const std::function<void(int)>& body) {
  body(0);  // takes the memory that it needs
  cudaStream_t stream = ops.stream();
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capturing calls");
  for (int call = 0; call < calls; ++call) body(call);
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(stream, &graph), "capturing calls");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t made = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  check(made, "making a graph of calls");
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  check(cudaEventCreateWithFlags(&begin, cudaEventDefault), "creating an event");
  check(cudaEventCreateWithFlags(&end, cudaEventDefault), "creating an event");
  std::vector<float> milliseconds;
  for (int round = 0; round < rounds; ++round) {
    check(cudaEventRecord(begin, stream), "timing calls");
    check(cudaGraphLaunch(executable, stream), "timing calls");
    check(cudaEventRecord(end, stream), "timing calls");
    check(cudaEventSynchronize(end), "running calls");
    check(cudaEventElapsedTime(&milliseconds.emplace_back(), begin, end), "timing calls");
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaGraphExecDestroy(executable);
  std::nth_element(milliseconds.begin(), milliseconds.begin() + rounds / 2, milliseconds.end());
  return milliseconds[static_cast<size_t>(rounds / 2)] * 1e-3 / calls;
}

void bind_timing(DeviceClass& device) {
  // Seconds of a linear layer on x [rows, in_features], of which there are several weights, equal in shape, in turn.
  device.def("time_linear", [](TestDevice& d, const std::vector<const WeightOnDevice*>& weights,
                               const Array<float>& rows_of_x, int calls, int rounds) {
    CudaOperators& ops = operators_of(d);
    const Floats x(ops, rows_of_x);
    const int rows = x.size(0);
    const AlignedBuffer outputs = float_buffer(ops, rows, weights.at(0)->layer().out_features);
    return graph_seconds(ops, calls, rounds, [&](int call) {
      const LinearWeight& weight = weights[static_cast<size_t>(call) % weights.size()]->layer();
      ops.linear(weight, x.data(), rows, outputs.as<float>(), false);
    });
  });
  // Result of linear layers in a chain for x [rows, in_features]: launched as they come, and in a graph.
  device.def("chain_linear", [](TestDevice& d, const std::vector<const WeightOnDevice*>& weights,
                                const Array<float>& rows_of_x, const Array<float>& last) {
    CudaOperators& ops = operators_of(d);
    const Floats x(ops, rows_of_x), like(ops, last);
    const int rows = x.size(0);
    std::vector<AlignedBuffer> made;
    for (const WeightOnDevice* weight : weights) made.push_back(float_buffer(ops, rows, weight->layer().out_features));
    const auto clear = [&](float* memory, size_t bytes) {  // nothing is left of an earlier run
      check(cudaMemsetAsync(memory, 0xFF, bytes, ops.stream()), "clearing what layers made");
    };
    const auto run = [&](int) {
      for (const AlignedBuffer& buffer : made) clear(buffer.as<float>(), buffer.size());
      clear(like, like.bytes());
      const float* from = x;
      for (size_t i = 0; i < weights.size(); ++i) {
        float* to = i + 1 == weights.size() ? like.data() : made[i].as<float>();
        ops.linear(weights[i]->layer(), from, rows, to, false);
        from = to;
      }
    };
    run(0);
    const auto alone = like.fetch();
    graph_seconds(ops, 1, 1, run);
    return pybind11::make_tuple(alone, like.fetch());
  });
}

}  // namespace turbomind::cuda
