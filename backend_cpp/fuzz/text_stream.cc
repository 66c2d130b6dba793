// Text of a response, however its bytes are cut into tokens. Input: a line of stop strings, in UTF-8 and
// with tabs between them, then the response.
#include "engine/generation/text_stream.h"

#include <algorithm>
#include <functional>

#include "fuzz/fuzz.h"

namespace turbomind {

namespace {

struct Shown {
  std::string text;
  bool is_stopped = false;
};

bool is_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto at = [&](size_t k) { return k < text.size() ? static_cast<unsigned char>(text[k]) : 0u; };
    const unsigned lead = at(i);
    const size_t length = lead < 0x80 ? 1 : lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
    if (length == 0) return false;
    uint32_t code = length == 1 ? lead : lead & (0x7Fu >> length);
    for (size_t k = 1; k < length; ++k) {
      if ((at(i + k) & 0xC0u) != 0x80u) return false;
      code = code << 6 | (at(i + k) & 0x3Fu);
    }
    constexpr uint32_t kMinLength[] = {0, 0, 0x80, 0x800, 0x10000};
    if (code < kMinLength[length] || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) return false;
    i += length;
  }
  return true;
}

Shown stream(std::string_view text, const std::vector<StringPattern>& stops,
             const std::function<size_t(size_t)>& piece_at) {
  TextStream stream(stops);
  Shown shown;
  for (size_t at = 0; at < text.size() && !shown.is_stopped;) {
    const size_t length = std::min(piece_at(at), text.size() - at);
    shown.is_stopped = stream.append(text.substr(at, length), true);
    const std::string piece = stream.take();
    PROMISE(is_utf8(piece));
    shown.text += piece;
    at += length;
  }
  if (!shown.is_stopped) shown.text += stream.take_rest();
  PROMISE(is_utf8(shown.text));
  return shown;
}

}  // namespace

FUZZ_TARGET(text_stream) {
  const std::string_view line = input.substr(0, input.find('\n'));
  const std::string_view text = line.size() < input.size() ? input.substr(line.size() + 1) : std::string_view();
  std::vector<std::string> words;
  for (size_t at = 0; at < line.size();) {
    const std::string_view word = line.substr(at, line.find('\t', at) - at);
    if (!word.empty() && is_utf8(word) && words.size() < 8) words.emplace_back(word);
    at += word.size() + 1;
  }
  const std::vector<StringPattern> stops(words.begin(), words.end());
  const Shown bytewise = stream(text, stops, [](size_t) { return 1; });
  const Shown whole = stream(text, stops, [&](size_t) { return text.size(); });
  const Shown cut = stream(text, stops, [&](size_t at) { return 1 + static_cast<unsigned char>(text[at]) % 5; });
  const bool has_stop = std::any_of(words.begin(), words.end(),
                                    [&](const std::string& word) { return text.find(word) != std::string_view::npos; });
  for (const Shown* shown : {&bytewise, &whole, &cut}) {
    PROMISE(shown->is_stopped == has_stop);
    PROMISE(shown->text == bytewise.text);
  }
  for (const std::string& word : words) {
    // Others may be made of the U+FFFD that stands for what is no character.
    const bool is_ascii =
        std::all_of(word.begin(), word.end(), [](char c) { return static_cast<signed char>(c) >= 0; });
    PROMISE(!is_ascii || bytewise.text.find(word) == std::string::npos);
  }
}

}  // namespace turbomind
