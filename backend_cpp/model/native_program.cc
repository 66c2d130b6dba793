// The decoder's program (model/step/program.h).
#include <string>
#include <utility>

#include "model/native_runner.h"

namespace turbomind {

namespace {

// Whether the halves of a layer add to the residual stream themselves.
bool adds_directly(const BlockSpec& block, bool is_divided) {
  return !is_divided && !block.has_output_norms && !block.norms_stream && block.residual_scale == 1 &&
         block.stream_scale == 1;
}

// Whether both halves of a layer make one branch, which is added once.
bool joins_halves(const BlockSpec& block, bool is_divided) {
  return !adds_directly(block, is_divided) && !block.has_output_norms && block.is_parallel;
}

}  // namespace

void NativeRunner::compile() {
  program_ = Program(spec_.hidden_size);
  program_.begin("embeddings");
  compile_embeddings();
  for (int layer = 0; layer < spec_.num_layers; ++layer) {
    program_.begin("layer", layer);
    compile_layer(layer);
  }
  program_.begin("output");
  float* stream = hidden_;
  if (residual_streams_) {
    program_.add("stream = mean of streams",
                 [=, this](ModelStep& step) { residual_streams_->merge(step, weights_.stream_readers, stream); });
  }
  if (weights_.hyper) compile_mix(weights_.hyper);
  if (hyper_ && !weights_.hyper) {
    program_.add("stream = mean of streams", [=, this](ModelStep& step) { hyper_->mean(step, stream); });
  }
  compile_kept(spec_.num_layers);
  program_.add("logits = output layer(norm(wanted rows of stream))", [=, this](ModelStep& step) {
    outputs_.compute(step, stream, step.drops_rows ? nullptr : step_tokens_.logit_rows(), step.logit_rows,
                     step.projected);
  });
}

void NativeRunner::compile_embeddings() {
  float* stream = hidden_;
  const auto embed = [&](const char* name, const LinearStorage* table, const int32_t* numbers, float scale, float* to) {
    if (numbers == nullptr) return;
    const bool adds = to != stream;
    program_.add(std::string(adds ? "stream += " : "stream = ") + "embed(" + name + ")", [=, this](ModelStep& step) {
      step.ops.embed(table->view, numbers, step.rows, scale, to);
      if (adds) step.ops.add_scaled(1, to, step.rows, spec_.hidden_size, stream);
      if (step.adapters != nullptr) step.adapters->add_embeddings(step.ops, *table, numbers, stream);
    });
  };
  embed("tokens", &weights_.embedding, step_tokens_.tokens(), spec_.embedding_scale, stream);
  embed("positions", &weights_.position_embedding, step_tokens_.positions(), 1, branch_);
  embed("token types", &weights_.token_types, step_tokens_.token_types(), 1, branch_);
  if (spec_.has_embedding_norm) program_.norm(weights_.embedding_norm.view, this->stream(), this->stream());
  if (spec_.images) {
    program_.add("stream = images, in their rows", [=, this](ModelStep& step) {
      if (step.embedded > 0) step_tokens_.scatter_embeddings(step, 0, step.embedded, stream);
    });
  }
  if (head_) {
    program_.add("stream = join(stream, hidden states)",
                 [=, this](ModelStep& step) { head_->run(step, step.input, weights_, stream); });
  }
  if (layer_inputs_) {
    program_.add("further inputs = make(tokens, stream)", [=, this](ModelStep& step) {
      layer_inputs_->make(step, *weights_.layer_inputs, step_tokens_.tokens(), stream);
    });
  }
  if (residual_streams_) {
    program_.add("streams = make(stream)",
                 [=, this](ModelStep& step) { residual_streams_->make(step, weights_.stream_makers, stream); });
  }
  if (spec_.shared_blocks) {
    program_.add("embeddings = stream", [=, this](ModelStep& step) {
      step.ops.copy(stream, static_cast<size_t>(step.rows) * spec_.hidden_size * sizeof(float), embeddings_);
    });
  }
  if (hyper_) program_.add("streams = stream, each", [=, this](ModelStep& step) { hyper_->make(step, stream); });
  if (!spec_.ropes.empty()) {
    program_.add("rope tables = make(positions)", [this](ModelStep& step) {
      attention_.fill_tables(step);
      if (compressed_) compressed_->fill_tables(step);
    });
  }
}

// Cross-attention in front of a layer.
void NativeRunner::compile_cross_layers(int index) {
  float* stream = hidden_;
  for (int cross = 0; cross < cross_layer_count(spec_); ++cross) {
    if (spec_.images->cross_layers[static_cast<size_t>(cross)] != index) continue;
    program_.add("stream += cross_attention(stream, images)",
                 [=, this, cross_layer = &weights_.cross_layers[cross]](ModelStep& step) {
                   if (step.has_cross_spans) cross_->run(step.ops, cross, *cross_layer, mlp_, stream);
                 });
  }
}

void NativeRunner::compile_layer(int index) {
  const LayerWeights* layer = &weights_.layers[static_cast<size_t>(index)];
  float* stream = hidden_;
  compile_cross_layers(index);
  compile_kept(index);
  if (layer->shared) return compile_shared_block(index);
  if (residual_streams_) {
    program_.add("streams = predict(streams); stream = the active one",
                 [=, this](ModelStep& step) { residual_streams_->predict(step, *layer->streams, stream); });
  }
  if (const int ngrams = ngrams_of(spec_, index); ngrams >= 0) {
    program_.add("streams += n-grams(tokens, streams)", [=, this](ModelStep& step) {
      ngrams_->run(step, ngrams, *layer->ngrams, *recurrence_, step_tokens_.tokens(), hyper_->streams());
    });
  }
  if (hyper_) compile_mix(layer->mixer_hyper);
  const auto [mixer_input, mlp_input] = compile_inputs(index);
  if (residual_streams_) {
    program_.add("low rank = x + norm(up(down(x))), x = " + mixer_input.name,
                 [=, this, x = mixer_input.rows.x.floats()](ModelStep& step) {
                   residual_streams_->branch(step, *layer->streams, x);
                 });
  }
  if (has_mixer(spec_, index)) compile_mixers(index, mixer_input);
  if (residual_streams_) {
    program_.add("stream = (stream + low rank) / sqrt(2)",
                 [=, this](ModelStep& step) { residual_streams_->join(step, stream); });
  }
  if (index + 1 == spec_.num_layers && can_drop_rows()) compile_drop();
  if (has_mlp(spec_, index)) {
    if (hyper_) compile_mix(layer->mlp_hyper);
    compile_mlp(index, mlp_input);
  }
  compile_end(index);
}

void NativeRunner::compile_mix(const std::optional<HyperWeights>& weights) {
  program_.add("stream = mix of streams", [this, &weights, stream = hidden_.as<float>()](ModelStep& step) {
    hyper_->mix(step, *weights, stream);
  });
}

// Inputs of the halves of a layer.
std::pair<Source, Source> NativeRunner::compile_inputs(int index) {
  const LayerWeights& layer = weights_.layers[static_cast<size_t>(index)];
  const BlockSpec& block = block_of(spec_, index);
  const Source raw{"stream", hidden_, ""};
  const auto normed_by = [&](const NormStorage& norm, const Rows& workspace) -> Source {
    if (!block.has_input_norms || block.norms_stream) return raw;
    return {"norm(stream)", LinearInput::normed(norm.view, hidden_, workspace.data), workspace.name};
  };
  Source mixer = normed_by(layer.attention_norm, normed());
  Source mlp = normed_by(layer.mlp_norm, block.is_parallel ? gathered() : normed());
  if (head_ && index == 0 && head_->first_input() != nullptr) mixer = {"joined rows", head_->first_input(), ""};
  if (block.skips_first_norm && index == 0) mixer = raw;
  if (block.is_parallel && block.shares_norm) mlp = mixer = program_.made(mixer);
  if (block.is_parallel) mlp = program_.made(mlp);  // of the stream as it is now
  const bool is_read_twice = residual_streams_ || (has_recurrence(spec_, index) && has_attention(spec_, index));
  return {is_read_twice ? program_.made(mixer) : mixer, mlp};
}

Target NativeRunner::half_target(const BlockSpec& block) const {
  const bool is_direct = adds_directly(block, is_divided_) && !hyper_;
  return {is_direct ? stream() : branch(), is_direct};
}

void NativeRunner::compile_mixers(int index, const Source& input) {
  const LayerWeights& layer = weights_.layers[static_cast<size_t>(index)];
  const BlockSpec& block = block_of(spec_, index);
  if (block.norms_stream) program_.norm(layer.attention_norm.view, stream(), stream());
  Target target = half_target(block);
  if (has_recurrence(spec_, index)) {
    recurrence_->compile(program_, index, *layer.recurrence, input, target);
    target.accumulates = true;
  }
  if (has_attention(spec_, index)) attention_.compile(program_, index, layer.attention, input, target);
  if (compressed_) compressed_->compile(program_, index, *layer.compressed, input, target);
  if (!joins_halves(block, is_divided_)) compile_addition(block, layer.attention_output_norm);
}

void NativeRunner::compile_shared_block(int index) {
  const LayerWeights& layer = weights_.layers[static_cast<size_t>(index)];
  const int size = spec_.hidden_size;
  program_.add("joined = norm(stream beside embeddings)", [=, this, &layer](ModelStep& step) {
    const auto half = [&](float* rows, int width) {
      return HeadsView{rows, step.rows, static_cast<size_t>(width), 1, 0, size};
    };
    step.ops.copy_heads(half(hidden_, size), half(joined_, 2 * size));
    step.ops.copy_heads(half(embeddings_, size), half(joined_ + size, 2 * size));
    step.ops.norm(layer.shared->norm.view, joined_, step.rows, 2 * size, joined_);
  });
  attention_.compile(program_, index, layer.attention, {"joined", LinearInput(joined_), ""}, {branch()});
  if (is_divided_) program_.sum_over_ranks(branch());
  program_.norm(layer.mlp_norm.view, branch(), normed());
  program_.add("branch = mlp(normed)",
               [this, &layer](ModelStep& step) { mlp_.run(step, layer.mlp, LinearInput(normed_), branch_, false); });
  if (is_divided_) program_.sum_over_ranks(branch());
  program_.add("mlp_input = stream + project(branch)", [=, this, &layer](ModelStep& step) {
    step.ops.copy(hidden_, static_cast<size_t>(step.rows) * size * sizeof(float), mlp_input_);
    step.linear(layer.shared->project, LinearInput(branch_), mlp_input_, true);
  });
  const Source input{"norm(mlp_input)", LinearInput::normed(layer.attention_norm.view, mlp_input_, normed_), "normed"};
  recurrence_->compile(program_, index, *layer.recurrence, input, half_target(spec_.block));
  compile_addition(spec_.block, layer.attention_output_norm);
  if (index + 1 == spec_.num_layers && can_drop_rows()) compile_drop();
}

void NativeRunner::compile_mlp(int index, const Source& input) {
  const LayerWeights& layer = weights_.layers[static_cast<size_t>(index)];
  const BlockSpec& block = block_of(spec_, index);
  const auto dense = [&](const Source& x, const Target& y) {
    program_.add(y.is() + "mlp(" + x.name + ")", [this, mlp_weights = &layer.mlp, x = x.rows, y](ModelStep& step) {
      mlp_.run(step, *mlp_weights, x, y.rows.data, y.accumulates);
    });
  };
  const auto experts = [&](const Source& source, const Target& y) {
    const Source x = program_.made(source);
    program_.add(y.is() + "experts(" + x.name + ")", [this, &layer, index, x = x.rows.x.floats(), y](ModelStep& step) {
      expert_mlp_.run(step, *layer.experts, index, step_tokens_.tokens(), x, hidden_, y.rows.data, y.accumulates);
    });
  };
  if (block.norms_stream) program_.norm(layer.mlp_norm.view, stream(), stream());
  Target target = half_target(block);
  target.accumulates |= joins_halves(block, is_divided_);
  if (!has_experts(spec_, index)) {
    dense(input, target);
  } else if (!spec_.moe->is_alongside_mlp) {
    experts(input, target);
  } else {
    const Rows made{"experts", experts_};
    dense(input, {branch()});
    if (is_divided_) program_.sum_over_ranks(branch());
    program_.norm(layer.dense_output_norm.view, branch(), branch());
    experts({"norm(stream)", LinearInput::normed(layer.expert_norm.view, stream().data, normed().data), "normed"},
            {made});
    if (is_divided_) program_.sum_over_ranks(made);
    program_.norm(layer.expert_output_norm.view, made, made);
    program_.add_scaled(1, made, branch());
    return compile_addition(block, layer.mlp_output_norm, true);
  }
  compile_addition(block, layer.mlp_output_norm);
}

// Adds what a half of the layer made, or both, to the residual stream. `is_summed`: over ranks already.
void NativeRunner::compile_addition(const BlockSpec& block, const NormStorage& output_norm, bool is_summed) {
  if (adds_directly(block, is_divided_) && !hyper_) return;
  if (is_divided_ && !is_summed) program_.sum_over_ranks(branch());
  if (hyper_) {
    program_.add("streams += weights branch", [this](ModelStep& step) { hyper_->add(step, branch_); });
    return;
  }
  if (block.has_output_norms) program_.norm(output_norm.view, branch(), branch());
  if (block.stream_scale != 1) program_.scale(block.stream_scale, stream());
  program_.add_scaled(block.residual_scale, branch(), stream());
}

// Whether the MLP of the last layer can leave out rows that nobody asks for. A device with its own memory repeats steps
// of fixed rows; what a layer adds after its halves knows rows by their places in the step.
bool NativeRunner::can_drop_rows() const {
  return ops_->shares_host_memory() && !spec_.encoder && !keeps_hidden_ && !residual_streams_ && !hyper_ &&
         !layer_inputs_ && !block_of(spec_, spec_.num_layers - 1).is_parallel;
}

// Moves the rows that are wanted to the front of the residual stream.
void NativeRunner::compile_drop() {
  program_.add("stream = wanted rows of stream", [this](ModelStep& step) {
    if (!step.drops_rows) return;
    step.rows = step.logit_rows;
    float* rows = mlp_input_;
    step.ops.gather_rows(hidden_, step_tokens_.logit_rows(), step.rows, spec_.hidden_size, rows);
    step.ops.copy(rows, static_cast<size_t>(step.rows) * spec_.hidden_size * sizeof(float), hidden_);
  });
}

// The end of a layer, after its halves.
void NativeRunner::compile_end(int index) {
  const LayerWeights* layer = &weights_.layers[static_cast<size_t>(index)];
  float* stream = hidden_;
  float* branch = branch_;
  if (residual_streams_) {
    program_.add("streams = correct(streams, stream)",
                 [=, this](ModelStep& step) { residual_streams_->correct(step, *layer->streams, stream); });
  }
  if (layer_inputs_) {
    const std::string read = residual_streams_ ? "the active stream" : "stream";
    program_.add("branch = further input(" + read + ")", [=, this](ModelStep& step) {
      layer_inputs_->run(step, index, *layer->input, residual_streams_ ? residual_streams_->active(step) : stream,
                         branch);
    });
    if (residual_streams_) {
      program_.add("streams += branch, but the first",
                   [=, this](ModelStep& step) { residual_streams_->add(step, branch); });
    } else {
      program_.add_scaled(1, this->branch(), this->stream());
    }
  }
  if (block_of(spec_, index).has_layer_scale) {
    program_.add("stream *= learned factor", [=, this](ModelStep& step) {
      step.ops.scale_softcap(layer->scale, 0, step.rows, spec_.hidden_size, stream);
    });
  }
  if (spec_.images && index < spec_.images->deepstack_layers) {
    program_.add("stream += images of this depth, in their rows", [=, this](ModelStep& step) {
      if (step.embedded > 0) step_tokens_.scatter_embeddings(step, 1 + index, step.embedded, stream);
    });
  }
}

// Hands out the hidden states in front of a layer, or after the last, where they are asked for.
void NativeRunner::compile_kept(int layer) {
  if (kept_.size() == 0) return;
  const int size = spec_.hidden_size;
  if (kept_layers_.empty() && layer == spec_.num_layers) {
    if (has_final_norm(spec_)) {
      program_.norm(weights_.final_norm.view, stream(), {"kept", kept_});
    } else {
      program_.add("kept = stream", [this, size](ModelStep& step) {
        step.ops.copy(hidden_, static_cast<size_t>(step.rows) * static_cast<size_t>(size) * sizeof(float),
                      kept_.as<void>());
      });
    }
  }
  for (size_t i = 0; i < kept_layers_.size(); ++i) {
    if (kept_layers_[i] != layer) continue;
    program_.add("kept = stream", [this, size, at = i * static_cast<size_t>(size)](ModelStep& step) {
      const size_t width = kept_layers_.size() * static_cast<size_t>(size);
      step.ops.copy_heads({hidden_, step.rows, static_cast<size_t>(size), 1, 0, size},
                          {kept_ + at, step.rows, width, 1, 0, size});
    });
  }
}

}  // namespace turbomind
