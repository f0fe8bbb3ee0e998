#include <cstdio>
int main() { std::puts("rootdk"); }
