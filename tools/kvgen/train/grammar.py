# SPDX-License-Identifier: Apache-2.0
"""A seeded grammar of little stories.

story(rng) returns one story; document(rng) returns one to four of them, joined by blank lines.
A story picks its people, thing, place and weather once (its cast) and then tells one of several
plots about them, so names, pronouns, colours and places stay consistent from the first sentence
to the last. Each sentence is drawn from a few templates; {slots} are filled from the cast.
"""

# Heroes and friends have different names, so that a tiny model cannot mix them up.
HEROES = {"girl": "Lily Mia Anna Sara Lucy".split(), "boy": "Tom Ben Max Sam Leo".split(),
          "pet": "Pip Dot Coco Milo".split()}
FRIENDS = {"girl": "Ella Zoe Nora Ruby Rose".split(), "boy": "Jack Finn Peter Hugo Oscar".split(),
           "pet": "Fern Bruno Penny Rusty".split()}
ANIMALS = "fox cat dog rabbit bear mouse frog duck bird pig".split()
TRAITS = "little small kind brave happy quiet shy clever".split()
COLOURS = "red blue green yellow white black".split()
THINGS = "ball kite hat boat drum book cup key bell scarf".split()
FOODS = ["bread", "soup", "cake", "some apples", "some nuts", "some berries"]
PLACES = ["in the park", "in the forest", "in the garden", "by the river", "by the lake",
          "on the hill", "on the beach", "near the farm"]
SPOTS = ["under the bench", "behind the big tree", "in the tall grass", "near the old wall",
         "under the bridge", "behind the barn", "beside the road", "under some leaves"]
WEATHER = [("sunny", "the sun was warm"), ("cold", "the wind was icy"),
           ("rainy", "the rain fell softly"), ("windy", "the wind blew hard"),
           ("bright", "the sky was clear and blue")]
TIMES = ["One day", "One morning", "One afternoon", "One evening"]
GLAD = "happy glad merry".split()
SAD = "sad worried upset".split()


def an(words):
    return ("an " if words[0] in "aeiou" else "a ") + words


def person(rng, names):
    """A child or an animal: name, what it is, pronouns."""
    girl = rng.random() < 0.5
    kind = "girl" if girl else "boy"
    name = rng.choice(names[kind])
    if rng.random() < 0.4:
        name, kind = rng.choice(names["pet"]), rng.choice(ANIMALS)
    he, him, his = ("she", "her", "her") if girl else ("he", "him", "his")
    return {"": name, "k": kind, "e": he, "m": him, "s": his, "E": he.capitalize(),
            "S": his.capitalize(), "t": rng.choice(TRAITS)}


class Teller:
    """The cast of one story and the sentences told so far."""

    def __init__(self, rng):
        self.rng = rng
        self.out = []
        hero, friend = person(rng, HEROES), person(rng, FRIENDS)
        self.cast = {"H" + k: v for k, v in hero.items()}
        self.cast |= {"F" + k: v for k, v in friend.items()}
        kind, sky = rng.choice(WEATHER)
        spots = rng.sample(SPOTS, 3)
        self.cast |= {
            "thing": rng.choice(THINGS), "col": rng.choice(COLOURS), "food": rng.choice(FOODS),
            "place": rng.choice(PLACES), "day": kind, "sky": sky, "time": rng.choice(TIMES),
            "glad": rng.choice(GLAD), "sad": rng.choice(SAD),
            "spot": spots[0], "spot2": spots[1], "spot3": spots[2],
            "Ha": an(hero["t"] + " " + hero["k"]), "Fa": an(friend["t"] + " " + friend["k"]),
        }

    def say(self, *choices):
        self.out.append(self.rng.choice(choices).format_map(self.cast))

    def maybe(self, *choices):
        if self.rng.random() < 0.5:
            self.say(*choices)

    def para(self):
        self.out.append("\n")

    def text(self):
        return " ".join(self.out).replace(" \n ", "\n")


def opening(t):
    t.say("Once upon a time, there was {Ha} named {H}.",
          "Once upon a time, {Ha} named {H} lived {place}.",
          "There once was {Ha} named {H}.",
          "{H} was {Ha} who lived {place}.")
    t.maybe("{H} loved to play {place}.", "{HE} liked to sing and dance.",
            "Every day, {H} went for a walk {place}.")


def meet(t):
    t.say("{time}, it was {day} and {sky}.", "{time}, {H} went out to play {place}.",
          "It was a {day} day and {sky}.")


def ending(t):
    t.para()
    t.maybe("That night, {H} told {Hs} mom about the day.", "Then it was time to go home.",
            "The sun went down and the stars came out.", "{H} and {F} walked home together.")
    t.say("From that day on, {H} and {F} were best friends.",
          "{H} went to bed with a smile and slept well.",
          "{H} learned that it is good to help a friend.",
          "And {H} was never {sad} again.",
          "They both laughed and they were very {glad}.")


def plot_lost(t):
    t.say("{HE} had a {col} {thing} and {He} took it everywhere.",
          "{HS} best thing was a {col} {thing}.", "{HS} mom gave {Hm} a {col} {thing}.")
    meet(t)
    t.say("But then the {col} {thing} was gone!", "But {H} could not find the {col} {thing}.",
          "Then {H} saw that {Hs} {col} {thing} was lost.")
    t.say("{H} was very {sad}.", "{HE} felt {sad} and began to cry.")
    t.para()
    t.say("{HE} looked {spot}, but it was not there.",
          "First, {He} looked {spot}, but the {thing} was not there.")
    t.maybe("Then {He} looked {spot2}, but it was not there.",
            "Next, {H} looked {spot2}, but {He} found only a stone.")
    t.say("{F} the {Fk} came by and saw that {H} was {sad}.",
          "Soon {Hs} friend {F} came to help.")
    t.say('"What is wrong?" asked {F}.', '"Why are you {sad}, {H}?" asked {F}.')
    t.say('"I lost my {col} {thing}," said {H}.',
          '"I can not find my {col} {thing}," {H} said.')
    t.say('"Do not be {sad}," said {F}. "I will help you."', '"Let us look together," said {F}.')
    t.para()
    t.say("They looked for a long time.", "{H} and {F} looked all day.",
          "They walked and walked and looked.")
    t.say("At last, {F} found the {col} {thing} {spot3}.",
          "Then {H} looked {spot3}, and there was the {col} {thing}!")
    t.say('"Thank you, {F}!" said {H}. "You are a good friend."',
          '"Here is my {thing}!" said {H}. "Thank you for your help."')
    t.say("{H} was so {glad} that {He} gave {F} a big hug.",
          "{H} was {glad} and played with the {thing} all day.")


def plot_share(t):
    t.say("{HE} had a good friend, {Fa} named {F}.", "{HS} friend was {Fa} named {F}.")
    meet(t)
    t.say("{H} found a {col} {thing} {spot}.", "{F} saw a {col} {thing} {spot}.")
    t.say('"It is mine!" said {H}.', '"I want the {thing}," said {H}.')
    t.say('"No, it is mine!" said {F}.', '"But I saw it first," said {F}.')
    t.say("They both pulled hard, and the {thing} fell down.",
          "They did not talk for a long time.", "{F} was {sad} and walked away.")
    t.para()
    t.say("{H} sat alone {spot2} and felt {sad}.",
          "{H} had the {col} {thing} now, but {He} was {sad}.")
    t.maybe("It was no fun to play alone.", "{HE} did not want to play anymore.")
    t.say("So {H} went to {F} and took the {thing} with {Hm}.",
          "Then {H} took the {col} {thing} and looked for {F}.")
    t.say('"I am sorry, {F}," said {H}. "We can share it."',
          '"I am sorry," {H} said. "You can have the {thing}."')
    t.say('"I am sorry too," said {F}. "Let us play together."',
          '"Thank you, {H}," said {F}. "We can play with it together."')
    t.say("They played with the {col} {thing} until it was dark.",
          "{H} and {F} took turns with the {col} {thing}.")


def plot_hungry(t):
    meet(t)
    t.say("{HE} took {food} and a {col} {thing} for the day.",
          "{H} had {food} in {Hs} bag.")
    t.say("On the way, {He} met {Fa} named {F}.", "Then {H} saw {Fa} {spot}. {FS} name was {F}.")
    t.say("{F} looked {sad} and hungry.", "{FE} was cold and hungry.")
    t.say('"Are you hungry?" asked {H}.', '"What is wrong, {F}?" asked {H}.')
    t.say('"I have no food," said {F}.', '"I am so hungry," said {F}.')
    t.para()
    t.say("{H} thought for a while.", "{H} looked at {F} and smiled.")
    t.say('"You can have {food}," {He} said.', '"I have {food}," said {H}. "Let us share."')
    t.say("{F} ate and ate until {Fe} was full.", "They sat {spot2} and ate {food} together.")
    t.say('"Thank you, {H}," said {F}. "You are very kind."',
          '"That was so good!" said {F}. "Thank you!"')
    t.para()
    t.say("The next day, {H} fell and hurt {Hs} leg {spot3}.",
          "The next day, {H} was lost and it was dark.")
    t.say('"Help me!" {He} cried.', "{HE} called for help, but no one came.")
    t.say("{F} heard {Hm} and came at once.", "Then {H} saw {F}. {FE} ran as fast as {Fe} could.")
    t.say('"You helped me, so I will help you," said {F}.',
          '"Do not cry, {H}," said {F}. "I am here."')
    t.say("{F} took {H} home, and {H} was {glad}.",
          "{H} was {glad} that {Fe} was {Hs} friend.")


def plot_noise(t):
    t.say("{HE} was afraid of the dark.", "{HE} did not like the night.")
    t.say("One night, {H} heard a noise {spot}.", "One night, there was a loud noise {spot}.")
    t.say('"What is that?" {He} asked.', '"Who is there?" asked {H}.')
    t.say("No one said a word.", "But it was quiet again.", "{H} was afraid and wanted to run.")
    t.para()
    t.say("{HE} took {Hs} {col} {thing} and went to look.",
          "{H} wanted to be brave, so {He} went to look.")
    t.say("Step by step, {H} came near.", "{HE} walked slowly, step by step.")
    t.say("It was not a monster. It was {Fa}!", "And there, {spot}, sat {Fa}!")
    t.say('"Hello," said the {Fk}. "My name is {F}."', '"I am {F}," said the {Fk}.')
    t.say('"Why are you here?" asked {H}.', '"Are you lost, {F}?" asked {H}.')
    t.say('"I am lost," said {F}. "I can not find my home."',
          '"I am cold and it is dark," said {F}.')
    t.para()
    t.say('"Come with me," said {H}. "I will help you."',
          '"You can stay with me," said {H}.')
    t.say("They walked {place} and looked at the stars.",
          "{H} gave {F} {food} and a warm bed.")
    t.say("{F} was {glad} and said thank you.", '"You are very brave, {H}," said {F}.')
    t.say("Now {H} was not afraid of the dark anymore.", "After that, {H} loved the night.")


def plot_seed(t):
    meet(t)
    t.say("{H} found a small seed {spot}.", "{HS} friend {F} gave {Hm} a small seed.")
    t.say('"What can I do with it?" asked {H}.', '"Will it grow?" asked {H}.')
    t.say('"Put it in the ground and wait," said {F}.',
          '"Give it water every day," said {F}.')
    t.say("So {H} put the seed in the ground {place}.", "{H} planted the seed {spot2}.")
    t.para()
    t.say("The first day, {He} looked, but there was nothing.",
          "{HE} waited one day, but nothing came.")
    t.say("The second day, {He} gave it water and waited.", "The next day, it was {day} and {sky}.")
    t.maybe("{H} was {sad} and wanted to stop.", '"It will never grow," said {H}.')
    t.maybe('"You must wait," said {F}. "Good things take time."',
            '"Do not be {sad}," said {F}. "It will grow."')
    t.say("Then, one morning, there was a small green leaf!",
          "On the third day, {H} saw a small green leaf.")
    t.para()
    t.say("The plant grew and grew, and soon it had a {col} flower.",
          "Soon there was a big {col} flower.")
    t.say('"Look, {F}!" said {H}. "It is so pretty!"',
          '"You were right, {F}," said {H}. "It did grow!"')
    t.say("{H} gave the {col} flower to {F}.", "Everyone came to see the {col} flower.")


def plot_gift(t):
    t.say("{HE} had a good friend, {Fa} named {F}.", "{HS} best friend was {Fa} named {F}.")
    t.say("{time}, {H} wanted to make a gift for {F}.",
          "It was a big day for {F}, and {H} wanted to give {Fm} a gift.")
    t.say('"I will make a {thing}," {He} said. "A {col} one!"',
          '"{F} loves {col} things," said {H}. "I will make a {col} {thing}."')
    t.say("{HE} worked all day.", "{H} worked and worked, but it was hard.")
    t.maybe("{HS} mom helped {Hm} a little.", "It took a long time.", "{H} sang while {He} worked.")
    t.para()
    t.say("Then {H} went to see {F}. It was {day} and {sky}.",
          "On the way to {F}, {sky}.")
    t.say("But {H} fell, and the {thing} broke!", "But the {col} {thing} fell down and broke.")
    t.say("{H} felt {sad} and sat down {spot}.", '"Oh no!" cried {H}. "Now I have no gift."')
    t.say("{F} came and saw {Hm}.", "Just then, {F} came by.")
    t.say('"I made a {thing} for you, but it broke," said {H}.',
          '"I am sorry, {F}," said {H}. "Your {thing} broke."')
    t.say('"We can fix it together," said {F}.', '"Do not be {sad}," said {F}. "I love it."')
    t.para()
    t.say("They fixed the {col} {thing}, and it was as good as new.",
          "{F} and {H} made it new again, and it was very pretty.")
    t.say('"This is the best gift of all," said {F}.',
          '"Thank you, {H}," said {F}. "I love my {col} {thing}."')


def plot_trip(t):
    t.say("{HE} wanted to see the sea.", "{HE} wanted to climb the big hill.",
          "{HE} wanted to see the whole world.")
    t.say("{time}, {H} put {food} in a bag and said goodbye.",
          "{time}, {H} took {Hs} {col} {thing} and began to walk.")
    t.say("It was {day} and {sky}.", "The way was long, and {sky}.")
    t.say("After a while, {H} met {Fa} named {F}.", "Near a tree sat {Fa} named {F}.")
    t.say('"Where are you going?" asked {F}.', '"Hello, {H}! Can I come with you?" asked {F}.')
    t.say('"I am going far away," said {H}. "Come with me!"',
          '"Yes, come with me," said {H}. "We can go together."')
    t.para()
    t.say("So they walked together and sang a song.", "{H} and {F} walked and talked all day.")
    t.say("Then the rain came, and they hid {spot}.", "When it was dark, they slept {spot}.")
    t.maybe('"I am {sad}," said {F}.', '"Are we there yet?" asked {F}.')
    t.maybe('"It is not far now," said {H}.',
            '"Have some of this," said {H}, and gave {Fm} {food}.')
    t.say("In the morning, {sky} and they walked on.", "The next day, they walked on.")
    t.para()
    t.say("At last they were there.", "Then {F} stopped and looked up.")
    t.say('"Look!" said {H}. "It is so big and so pretty!"',
          '"We did it!" said {F}. "We did it together!"')
    t.say("They stayed {place} and played all day.", "They sat down and looked for a long time.")


PLOTS = [plot_lost, plot_share, plot_hungry, plot_noise, plot_seed, plot_gift, plot_trip]


def story(rng):
    t = Teller(rng)
    opening(t)
    rng.choice(PLOTS)(t)
    ending(t)
    return t.text()


def document(rng):
    n = rng.choice((1, 1, 1, 1, 2, 2, 3, 4))
    return "\n\n".join(story(rng) for _ in range(n))


if __name__ == "__main__":
    import random
    import sys
    print(document(random.Random(int(sys.argv[1]) if len(sys.argv) > 1 else 0)))
