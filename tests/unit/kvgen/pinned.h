/* SPDX-License-Identifier: Apache-2.0 */
/* pinned - greedy texts of models/stories-*.kvm, at most 300 tokens, as train.py printed them
 *
 * They come from the training framework's own forward pass (fp32, unabsorbed, no cache), so they
 * are an independent check of kvgen's. A new model needs new texts: train.py prints them.
 */
#ifndef PINNED_H
#define PINNED_H

#define PINNED_MHA	"tools/kvgen/models/stories-mha.kvm"
#define PINNED_MLA	"tools/kvgen/models/stories-mla.kvm"
#define PINNED_PROMPT	"Once upon a time, there was a brave girl named"

static const char pinned_mha_free[] =
	"Once upon a time, there was a shy girl named Lily. She liked to sing and dance. She "
	"had a good friend, a shy girl named Nora. One afternoon, Lily wanted to make a gift "
	"for Nora. \"Nora loves red things,\" said Lily. \"I will make a red book.\" She "
	"worked all day.\n"
	"Then Lily went to see Nora. It was rainy and the rain fell softly. But the red book "
	"fell down and broke. \"Oh no!\" cried Lily. \"Now I have no gift.\" Nora came and "
	"saw her. \"I made a book for you, but it broke,\" said Lily. \"We can fix it "
	"together,\" said Nora.\n"
	"Nora and Lily made it new again, and it was very pretty. \"Thank you, Lily,\" said "
	"Nora. \"I love my red book.\"\n"
	"Lily and Nora walked home together. Lily went to bed with a smile and s";

static const char pinned_mha_prompt[] =
	"Once upon a time, there was a brave girl named Lily. She liked to sing and dance. "
	"She had a good friend, a shy girl named Nora. One afternoon, Lily wanted to make a "
	"gift for Nora. \"Nora loves red things,\" said Lily. \"I will make a red book.\" "
	"She worked all day.\n"
	"Then Lily went to see Nora. It was rainy and the rain fell softly. But the red book "
	"fell down and broke. \"Oh no!\" cried Lily. \"Now I have no gift.\" Nora came and "
	"saw her. \"I made a book for you, but it broke,\" said Lily. \"We can fix it "
	"together,\" said Nora.\n"
	"Nora and Lily made it new again, and it was very pretty. \"Thank you, Lily,\" said "
	"Nora. \"I love my red book.\"\n"
	"Lily and Nora walked home together. Lily went to bed with a smile and s";

static const char pinned_mla_free[] =
	"Once upon a time, a small boy named Sam lived in the park. He liked to sing and "
	"dance. He had a good friend, a small girl named Ella. One afternoon, Sam wanted to "
	"make a gift for Ella. \"I will make a ball,\" he said. \"A yellow one!\" He worked "
	"all day.\n"
	"Then Sam went to see Ella. It was rainy and the rain fell softly. But the yellow "
	"ball fell down and broke. \"Oh no!\" cried Sam. \"Now I have no gift.\" Just then, "
	"Ella came by. \"I made a ball for you, but it broke,\" said Sam. \"We can fix it "
	"together,\" said Ella.\n"
	"They fixed the yellow ball, and it was as good as new. \"This is the best gift of "
	"all,\" said Ella.\n"
	"The sun went down and the stars came out. Sam went to bed with a smile and slept "
	"well.\n"
	"\n"
	"Once upon a time, a shy girl named";

static const char pinned_mla_prompt[] =
	"Once upon a time, there was a brave girl named Lily. She liked to sing and dance. "
	"She had a good friend, a small girl named Ella. One afternoon, Lily wanted to make "
	"a gift for Ella. \"I will make a ball,\" she said. \"A yellow one!\" She worked all "
	"day.\n"
	"Then Lily went to see Ella. It was rainy and the rain fell softly. But the yellow "
	"ball fell down and broke. Lily felt worried and sat down behind the big tree. Ella "
	"came and saw her. \"I am sorry, Ella,\" said Lily. \"Your ball broke.\" \"Do not be "
	"worried,\" said Ella. \"I love it.\"\n"
	"They fixed the yellow ball, and it was as good as new. \"This is the best gift of "
	"all,\" said Ella.\n"
	"Lily and Ella walked home together. And Lily was never worried again.";

#endif
