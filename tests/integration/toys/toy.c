#include <stdio.h>

int main(int count, char **words) {
    printf("toy %d\n", count - 1);
    return count > 1 ? words[1][0] - '0' : 0;
}
