// Prints the tokens behind a prompt of token ids: ./example DIR 5,17,42 8
// Drawn ones, with scores divided by 0.8, by the seed 7: ./example DIR 5,17,42 8 0.8 7
#include <cstdio>
#include <exception>
#include <sstream>

#include "model.hpp"

// The number that ``text`` is.
template <class Number>
Number read(const std::string& text) {
  std::istringstream from(text);
  Number number{};
  if (!(from >> number) || from.peek() != EOF) throw std::runtime_error("'" + text + "' is no number here");
  return number;
}

int main(int count, char** words) {
  if (count != 4 && count != 6) return std::fprintf(stderr, "example DIR 5,17,42 8 [TEMPERATURE SEED]\n"), 2;
  try {
    std::vector<int> prompt;
    std::istringstream ids(words[2]);
    for (std::string id; std::getline(ids, id, ',');) prompt.push_back(read<int>(id));
    meshc_model::Sampling sampling;
    if (count == 6) sampling.temperature = read<double>(words[4]), sampling.seed = read<uint64_t>(words[5]);
    meshc_model::Model model(words[1]);
    const char* between = "";
    for (int token : model.generate(prompt, read<int>(words[3]), meshc_model::STOP, sampling)) {
      std::printf("%s%d", between, token);
      between = ",";
    }
    std::printf("\n");
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "example: %s\n", problem.what());
    return 1;
  }
}
