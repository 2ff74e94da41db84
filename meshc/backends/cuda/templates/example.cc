// Prints the tokens behind a prompt of token ids: ./example DIR 5,17,42 8
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <sstream>

#include "model.hpp"

int main(int count, char** words) {
  if (count != 4) return std::fprintf(stderr, "example DIR 5,17,42 8\n"), 2;
  std::vector<int> prompt;
  std::istringstream ids(words[2]);
  for (std::string id; std::getline(ids, id, ',');) prompt.push_back(std::atoi(id.c_str()));
  try {
    meshc_model::Model model(words[1]);
    const char* between = "";
    for (int token : model.generate(prompt, std::atoi(words[3]))) {
      std::printf("%s%d", between, token);
      between = ",";
    }
    std::printf("\n");
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "example: %s\n", problem.what());
    return 1;
  }
}
