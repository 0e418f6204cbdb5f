"""Words and sentence patterns of everyday English; `sentences.py` puts them together.

A pattern is text with slots: `{food}` is an entry of `LISTS["food"]`, which may hold slots itself; `{act:past}` is an
entry whose first word, a verb, is put in that form; `{thing:many}` is a noun in the plural; `{number}`, `{time}` and
the like are made by `sentences.py`. "a" is written for "an" everywhere and put right at the end.
"""

from __future__ import annotations


def parse_entries(text: str) -> tuple[str, ...]:
    return tuple(" ".join(entry.split()) for entry in text.split(";") if entry.strip())


# base: third person, past, participle, -ing; regular verbs are not listed.
IRREGULAR_VERBS: dict[str, tuple[str, str, str, str]] = {
    base: (third, past, done, ing)
    for base, third, past, done, ing in (
        line.split()
        for line in """be is was been being
        begin begins began begun beginning
        break breaks broke broken breaking
        bring brings brought brought bringing
        build builds built built building
        buy buys bought bought buying
        catch catches caught caught catching
        choose chooses chose chosen choosing
        cut cuts cut cut cutting
        do does did done doing
        draw draws drew drawn drawing
        drink drinks drank drunk drinking
        drive drives drove driven driving
        drop drops dropped dropped dropping
        eat eats ate eaten eating
        feed feeds fed fed feeding
        feel feels felt felt feeling
        find finds found found finding
        fly flies flew flown flying
        forget forgets forgot forgotten forgetting
        get gets got gotten getting
        give gives gave given giving
        go goes went gone going
        grow grows grew grown growing
        have has had had having
        hear hears heard heard hearing
        hide hides hid hidden hiding
        hold holds held held holding
        keep keeps kept kept keeping
        know knows knew known knowing
        leave leaves left left leaving
        lend lends lent lent lending
        lose loses lost lost losing
        understand understands understood understood understanding
        make makes made made making
        meet meets met met meeting
        pay pays paid paid paying
        prefer prefers preferred preferred preferring
        plan plans planned planned planning
        put puts put put putting
        ride rides rode ridden riding
        run runs ran run running
        see sees saw seen seeing
        sell sells sold sold selling
        send sends sent sent sending
        shut shuts shut shut shutting
        sing sings sang sung singing
        sit sits sat sat sitting
        sleep sleeps slept slept sleeping
        speak speaks spoke spoken speaking
        spend spends spent spent spending
        stand stands stood stood standing
        stop stops stopped stopped stopping
        swim swims swam swum swimming
        take takes took taken taking
        teach teaches taught taught teaching
        tell tells told told telling
        think thinks thought thought thinking
        throw throws threw thrown throwing
        travel travels traveled traveled traveling
        wear wears wore worn wearing
        win wins won won winning
        write writes wrote written writing""".splitlines()
    )
}
IRREGULAR_PLURALS = {
    "child": "children", "foot": "feet", "tooth": "teeth", "mouse": "mice",
    "goose": "geese", "knife": "knives", "leaf": "leaves", "loaf": "loaves", "shelf": "shelves", "wolf": "wolves",
    "sheep": "sheep", "fish": "fish", "deer": "deer", "scarf": "scarves", "potato": "potatoes", "tomato": "tomatoes",
    "mango": "mangoes",
}  # fmt: skip

LISTS: dict[str, tuple[str, ...]] = {
    name: parse_entries(text)
    for name, text in {
        "first": """Alice; Ben; Clara; Daniel; Emma; Frank; Grace; Henry; Irene; Jack; Karen; Leo; Maria; Nathan;
            Olivia; Peter; Quentin; Rachel; Samuel; Teresa; Victor; Wendy; Arthur; Bella; Charles; Diana; Edward;
            Fiona; George; Hannah; Isaac; Julia; Kevin; Laura; Martin; Nora; Oscar; Paula; Robert; Susan; Thomas;
            Vera; Walter; Zoe; Adam; Brenda; Conrad; Eva; Felix; Gloria; Hugo; Ivan; Joyce; Kate; Louis; Monica;
            Paul; Rosa; Simon; Tina""",
        "last": """Smith; Johnson; Brown; Taylor; Miller; Wilson; Moore; Clark; Lewis; Walker; Young; King; Wright;
            Hill; Green; Baker; Adams; Nelson; Carter; Mitchell; Turner; Parker; Evans; Collins; Stewart; Morris;
            Cook; Rogers; Murphy; Bailey; Cooper; Richardson; Cox; Howard; Ward; Peterson; Gray; Ramsey; Watson;
            Brooks; Kelly; Sanders; Price; Bennett; Wood; Barnes; Ross; Henderson; Coleman; Jenkins; Perry; Powell;
            Long""",
        "kin": """mother; father; sister; brother; aunt; uncle; cousin; grandmother; grandfather; daughter; son; wife;
            husband; neighbor; friend; boss; teacher; roommate; niece; nephew""",
        "job": """doctor; nurse; farmer; baker; painter; lawyer; pilot; sailor; driver; singer; writer; engineer;
            student; waiter; carpenter; plumber; musician; actor; gardener; judge; soldier; librarian; scientist;
            photographer; mechanic; tailor; fisherman; detective; journalist; chemist; dentist; architect; clerk;
            manager; officer; shepherd; referee; secretary; electrician; astronaut; tourist; guest; stranger; child;
            woman; man; boy; girl; king; queen; poet; coach; editor; captain""",
        "animal": """cat; dog; horse; cow; sheep; goat; pig; chicken; duck; goose; rabbit; mouse; squirrel; fox; wolf;
            bear; lion; tiger; elephant; giraffe; monkey; parrot; owl; eagle; crow; pigeon; frog; snake; lizard;
            turtle; fish; shark; whale; dolphin; octopus; crab; spider; bee; butterfly; beetle; ant; deer; donkey;
            camel; kangaroo; penguin; hedgehog; otter; puppy; kitten""",
        "food": """apple; banana; orange; pear; peach; lemon; sandwich; salad; pizza; omelet; pancake; cookie; cake;
            pie; burger; carrot; potato; tomato; onion; cucumber; egg; muffin; waffle; burrito; steak; sausage;
            mushroom; strawberry; pineapple; mango; melon; pumpkin; biscuit; bagel; doughnut; dumpling; pretzel;
            avocado; olive; walnut""",
        "stuff": """bread; butter; cheese; milk; coffee; tea; water; rice; soup; pasta; sugar; salt; pepper; honey;
            chocolate; jam; juice; lemonade; flour; oil; vinegar; yogurt; ice cream; popcorn; garlic; cinnamon;
            spinach; chicken; fish; music; paper; firewood; soap; wool; sand; paint; medicine; gasoline""",
        "thing": """book; pen; pencil; letter; newspaper; phone; computer; camera; lamp; chair; table; sofa; bed;
            clock; watch; mirror; window; door; key; bottle; glass; cup; plate; bowl; knife; fork; spoon; basket;
            box; bag; suitcase; umbrella; hat; coat; jacket; shirt; sweater; scarf; glove; shoe; boot; ring;
            necklace; bicycle; car; truck; boat; train ticket; map; guitar; piano; violin; drum; trumpet; flute;
            ball; kite; doll; puzzle; hammer; ladder; shovel; bucket; rope; candle; blanket; pillow; towel;
            toothbrush; radio; television; painting; photo; postcard; flower; rose; statue; telescope; microscope;
            calendar; notebook; envelope; wallet; passport; machine; engine; wheel; bridge; fence; shelf; carpet;
            curtain; drawer; oven; kettle; refrigerator; vase; tent; backpack; compass; lantern; whistle""",
        "place": """park; library; museum; theater; station; airport; hospital; school; university; office; bakery;
            market; supermarket; restaurant; hotel; beach; harbor; lighthouse; castle; church; temple; stadium;
            garden; forest; river; lake; mountain; valley; village; island; farm; factory; bank; post office; gym;
            pool; zoo; cinema; bookstore; pharmacy; playground; square; bridge; kitchen; basement; attic; garage;
            courthouse; cottage; cathedral; aquarium; embassy; laundromat; orchard; vineyard; quarry; warehouse""",
        "city": """London; Paris; Berlin; Rome; Madrid; Vienna; Dublin; Boston; Chicago; Denver; Dallas; Seattle;
            Toronto; Sydney; Tokyo; Cairo; Athens; Lisbon; Oslo; Prague; Geneva; Moscow; Delhi; Nairobi; Lima;
            Havana; New York; San Francisco; Los Angeles; Hong Kong; Edinburgh; Amsterdam; Stockholm; Warsaw;
            Brussels; Philadelphia; Phoenix; Houston; Miami; Atlanta""",
        "country": """France; Germany; Italy; Spain; Ireland; Scotland; Canada; Mexico; Brazil; Argentina; Egypt;
            Kenya; India; China; Japan; Korea; Australia; Norway; Sweden; Greece; Portugal; Turkey; Poland; Morocco;
            Peru; Thailand; Iceland; Switzerland; Austria; Hungary""",
        "look": """old; new; small; large; big; little; tiny; huge; heavy; light; broken; clean; dirty; expensive;
            cheap; beautiful; ugly; strange; ordinary; simple; wooden; plastic; golden; silver; red; blue; green;
            yellow; black; white; brown; purple; orange; gray; pink; round; square; long; short; soft; rough; shiny;
            dusty; empty; famous; elegant; useful; unusual; ancient; modern; narrow; wide; thin; thick; sharp;
            smooth; fragile; colorful; enormous; lovely""",
        "mood": """happy; sad; angry; tired; hungry; thirsty; sleepy; bored; excited; nervous; calm; proud; ashamed;
            jealous; lonely; cheerful; worried; surprised; confused; curious; grateful; impatient; honest; polite;
            rude; friendly; shy; brave; clever; careful; careless; generous; lazy; busy; famous; quiet; patient;
            stubborn; thoughtful; optimistic; sick; healthy; ready; late; early""",
        "quality": """easy; difficult; possible; impossible; important; interesting; boring; dangerous; safe; useful;
            wonderful; terrible; perfect; awful; delicious; strange; true; false; fair; serious; funny; obvious;
            expensive; necessary; unusual; excellent; ridiculous; reasonable; complicated; simple; urgent; wrong;
            right; delightful; disappointing; remarkable; inevitable""",
        "sky": """sunny; cloudy; rainy; windy; foggy; snowy; stormy; cold; warm; hot; cool; humid; dry; freezing;
            mild; icy; chilly; pleasant""",
        "how": """quickly; slowly; quietly; loudly; carefully; happily; sadly; politely; patiently; gently; suddenly;
            eagerly; nervously; calmly; secretly; proudly; badly; well; easily; gladly; silently; bravely;
            anxiously; reluctantly; cheerfully; absently; together; alone; again; as usual; by accident; on purpose;
            without a word; with great care; for the first time; in a hurry""",
        "often": "always; never; often; sometimes; usually; rarely; seldom; almost never; nearly always; occasionally",
        "weekday": "Monday; Tuesday; Wednesday; Thursday; Friday; Saturday; Sunday",
        "month": "January; February; March; April; May; June; July; August; September; October; November; December",
        "season": "spring; summer; autumn; winter",
        "past_time": """yesterday; last night; last week; last month; last year; this morning; two days ago; a week
            ago; an hour ago; a few minutes ago; on {weekday}; last {weekday}; last {season}; in {month}; at {time};
            in {year}; on {date}; the other day; after lunch; before breakfast; during the storm; {number:small}
            years ago""",
        "future_time": """tomorrow; tonight; next week; next month; next year; soon; in an hour; in a few minutes; on
            {weekday}; next {weekday}; next {season}; at {time}; on {date}; after dinner; before sunrise; this
            afternoon; this evening; later; the day after tomorrow; in {number:small} weeks""",
        "habit_time": """every day; every morning; every evening; on weekends; twice a week; once a month; every
            {weekday}; in {season}; after work; before dinner; at night; in the afternoon; on {weekday} nights; all
            the time""",
        "where": """at the {place}; in the {place}; near the {place}; behind the {place}; outside the {place}; next to
            the {place}; in {city}; across from the {place}; on the way to the {place}; between the {place} and the
            {place}; at home; upstairs; in the next room; under the {thing}; inside; downtown; in the middle of the
            {place}""",
        "lying": """on the {thing}; under the {thing}; behind the {thing}; beside the {thing}; near the {place}; in
            the {place}""",
        "subject": """{first}; {first}; {first} {last}; my {kin}; her {kin}; his {kin}; our {kin}; their {kin}; the
            {job}; the {look} {job}; the {mood} {job}; a {job}; he; she; Mr. {last}; Mrs. {last}; Dr. {last};
            {first}'s {kin}; somebody; the {job} from {city}; one of the {job:many}; the {animal}""",
        "subjects": """we; they; you; I; the {job:many}; the {animal:many}; my {kin:many}; {first} and {first}; both
            of us; most {job:many}; my {kin} and I; the {look} {animal:many}; all of the {job:many}; {number:small}
            {job:many}; people; the people in {city}; several {job:many}; the other {job:many}""",
        "object": """a {thing}; the {thing}; a {look} {thing}; the {look} {thing}; my {thing}; {thing:many}; some
            {thing:many}; his {look} {thing}; her {thing}; their {thing}; our {thing}; {number:small} {thing:many};
            this {thing}; that {look} {thing}; those {thing:many}; the {job}'s {thing}; {first}'s {thing}; every
            {thing}; another {thing}""",
        "meal": """a {food}; some {stuff}; the {food}; {food:many}; a {look} {food}; {food:many} and {stuff};
            {number:small} {food:many}; a cup of {drink}; a bowl of soup; a piece of cake; a slice of {food};
            {food:many}, {food:many} and {stuff}; a glass of {drink}; some {stuff} with {stuff}""",
        "drink": "coffee; tea; water; milk; juice; lemonade; hot chocolate; orange juice",
        "whom": """him; her; them; me; us; you; {first}; my {kin}; the {job}; his {kin}; the {job:many}; Mr. {last};
            {first} and {first}; everybody; a {job}""",
        "act": """buy {object}; sell {object}; find {object}; lose {object}; break {object}; repair {object}; clean
            {object}; wash {object}; paint {object}; carry {object}; borrow {object}; draw {object}; hide {object};
            open {object}; choose {object}; bring {object}; take {object}; use {object}; describe {object}; examine
            {object}; drop {object}; collect {object}; cook {meal}; eat {meal}; prepare {meal}; order {meal}; taste
            {meal}; share {meal}; serve {meal}; drink a cup of {drink}; call {whom}; help {whom}; visit {whom}; meet
            {whom}; follow {whom}; thank {whom}; teach {whom}; photograph {whom}; invite {whom}; wait for {whom};
            listen to {whom}; talk to {whom} about {topic}; give {whom} {object}; show {whom} {object}; send {whom}
            {object}; lend {whom} {object}; tell {whom} about {topic}; write to {whom}; argue with {whom} about
            {topic}; walk to the {place}; drive to {city}; fly to {city}; travel to {country}; go to the {place};
            run to the {place}; swim in the {place}; work at the {place}; stay at the {place}; leave the {place};
            return to {country}; sing {how}; dance {how}; laugh {how}; sleep {how}; smile {how}; play the guitar;
            play chess; play football; ride a horse; read about {topic}; write about {topic}; study {topic}; learn
            {topic}; think about {topic}; dream about {topic}; feed the {animal:many}; chase the {animal}; watch the
            {animal:many}; pay {money} for {object}; spend {money} on {topic}; plant {number:small} trees; climb the
            {place}; explore the {place}; photograph the {animal}; look for {object}; put {object} {lying}; leave
            {object} {lying}""",
        "know": """need {object}; want {object}; like {object}; forget {object}; remember {object}; know {whom}; see
            {whom}; live in {city}; hear the {animal:many}; remember {whom}; own {object}; enjoy {topic}; love
            {topic}; hate {stuff}; prefer {stuff} to {stuff}; understand {topic}; miss {whom}; recognize {whom};
            belong to {whom}; want to {act}; hope to {act}; plan to {act}; have to {act}; try to {act}; decide to
            {act}; refuse to {act}; seem {mood}""",
        "topic": """history; music; the weather; science; art; politics; football; money; mathematics; the future;
            chemistry; gardening; philosophy; geography; astronomy; travel; the economy; cooking; photography;
            medicine; {country}; {animal:many}; the moon; old movies; poetry; physics; biology; architecture;
            education; the news; the problem; the accident; the election; the journey; the {place}; language;
            health; sports; the war; nature""",
        "clause": """it was {sky} outside; {subject} was {mood}; the {place} was closed; there was no {stuff} left;
            nobody answered; the {thing} was too {look}; the {animal:many} were {mood}; it was already late;
            everyone was asleep; the train was late; the lights went out; we had no time; the door was locked""",
    }.items()
}

NATURAL = parse_entries("""
    {subject} {act:past} {past_time}.; {subject} {act:past}.; {subject} {act:past} {where}.; {subjects} {act:past}
    {past_time}.; {subject} {often} {act:third}.; {subject} {act:third} {habit_time}.; {subjects} {act} {habit_time}.;
    {subjects} {often} {act}.; {subject} will {act} {future_time}.; {subjects} will {act} {future_time}.; {subject}
    has {act:done}.; {subjects} have {often} {act:done}.; {subject} was {act:ing} when {clause}.; {subject} is
    {act:ing}.; {subject} wants to {act}.; {subjects} would like to {act} {future_time}.; {subject} can't {act}.;
    {subjects} don't {act}.; {subject} doesn't {act} {habit_time}.; {subject} didn't {act} {past_time}.; {subject} had
    to {act} because {clause}.; {subject} {act:past}, but {clause}.; {subject} {act:past} because {clause}.; When
    {clause}, {subject} {act:past}.; If you {act}, {subject} will {act}.; Although {clause}, {subjects} {act:past}.;
    {subject} said that {clause}.; I think {subject} should {act}.; I hope that you will {act} {future_time}.; It is
    {quality} to {act}.; It was {quality} to {act} {where}.; {subject} stopped and {act:past}.; {past_time}, {subject}
    {act:past}.; {future_time}, {subject} will {act}.; {subject} is {mood} today.; {subject} looked very {mood}
    {past_time}.; The {thing} is {lying}.; The {look} {thing} was {lying}.; There is a {look} {thing} {lying}.; The
    {thing} {where} is {look}.; There are {number:small} {animal:many} {where}.; There was some {stuff} on the table.;
    The {stuff} tastes {quality}.; The {place} is {number} meters from the {place}.; The {place} opens at {time} and
    closes at {time}.; The {thing} costs {money}.; {subject} paid {money} for a {look} {thing}.; The train to {city}
    leaves at {time}.; The meeting is on {date} at {time}.; My number is {telephone}.; {subject} was born in {year}.;
    {subject} was born on {date}.; About {percent} of the {job:many} live in {city}.; Prices rose by {percent} in
    {year}.; It is {number:small} degrees in {city}.; The {place} was built in {year}.; {subject} is {number:small}
    years old.; {subject} came {ordinal} in the race.; This is the {ordinal} {thing} I have lost.; Chapter
    {number:small} is about {topic}.; Turn to page {number}.; The distance is {decimal} kilometers.; {subject} lives
    at {number} {last} Street.; Flight {number} to {city} is delayed.; It is {sky} in {city} today.; It will be {sky}
    and {sky} {future_time}.; It was a {sky} day {where}.; The weather in {country} is {often} {sky}.; {stuff},
    {stuff}, {food:many} and {stuff} are on the list.; We need {food:many}, {stuff} and {number:small} {food:many}.;
    {first}, {first} and {first} {act:past} {past_time}.; I saw a {animal}, a {animal} and {number:small}
    {animal:many} {where}.; The colors are red, green, {look} and blue.; What does {subject} {act} {habit_time}?; Did
    {subject} {act} {past_time}?; Does {subject} {often} {act}?; Can you {act}?; Could you {act} {future_time},
    please?; Will {subject} {act} {future_time}?; Have you ever {act:done}?; Why did {subject} {act}?; When will
    {subject} {act}?; Where is {object}?; Where did {subject} {act}?; Who {act:past} {past_time}?; Which {thing} do
    you prefer, the {look} one or the {look} one?; How many {thing:many} are {where}?; How much is this {thing}?; Is
    the {place} far from the {place}?; Is there a {place} near here?; Are the {animal:many} {mood}?; What time is it
    in {city}?; Isn't it {sky} today?; Do you want to {act}, or would you rather {act}?; Would you like a cup of
    {drink}?; How old is {subject}?; What a {look} {thing}!; How {quality}!; What a {quality} day!; Please don't
    {act}!; Let's {act}!; Look at the {animal}!; Be careful, the {thing} is {look}!; I can't believe that {clause}!;
    Happy birthday, {first}!; Hurry up, or we will be late!; Please {act}.; Don't {act}.; {act} before you {act}.;
    Never {act} {where}.; Try to {act}.; Let me {act}.; My book about {topic} is {lying}.; {subject} {know:third}.;
    {subjects} {know}.; {subject} {know:past} {past_time}.; {subject} {know:third}, but {subjects} {know}.; Does
    {subject} {know}?; Do {subjects} {know}?; {subject} doesn't {know}.; {subjects} have never {know:done}.; The {job}
    told {whom} to {act}.; {subject} asked {whom} to {act} {future_time}.; Neither {first} nor {first} {act:past}.;
    The more you {act}, the better you feel.; As far as I know, {clause}.; In my opinion, {topic} is {quality}.;
    {topic} is {quality}, isn't it?; Some people {act}.; On the one hand it is {quality}, on the other hand it is
    {quality}.; First {act}, then {act}.; It depends on the {thing}.
""")
SHORT = parse_entries("""
    Yes.; No.; Maybe.; Thanks.; Thank you.; Thank you very much.; Good morning.; Good night.; Good evening, {first}.;
    Hello.; Hello, {first}!; Goodbye.; Goodbye, {first}.; See you {future_time}.; Of course.; Of course not.; I see.;
    I know.; All right.; Well done!; Come in.; Sit down, please.; Really?; Why not?; What?; Who is it?; Where are we?;
    How are you?; I'm fine.; I'm sorry.; Excuse me.; No problem.; Never mind.; Not yet.; Right now.; Stop!; Wait!;
    Look!; Help!; Help me!; It's {time}.; It's {money}.; On {date}.; At {time}.; {number}.; {first} {last}.; {city}.;
    {look} {thing:many}.; Is it {quality}?; That's {quality}.; It's {sky}.; Very {quality}.; So {mood}!; I'm {mood}.;
    Are you {mood}?; {weekday} morning.; In {season}.; A {look} {thing}.; The {place}, please.; Two {food:many},
    please.; Nice to meet you.; Congratulations!; Be quiet.; Don't worry.; Let's go.; Hurry up!; Good luck, {first}.;
    What time is it?; Who knows?; Me too.; Not at all.; My {kin}.; {quality}.
""")
DRILL = parse_entries("""
    The words are {word}, {word}, {word} and {word}.; She wrote {word}, {word} and {word} on the board.; Please say
    {word} and {word} once more.; {word} {word} {word} {word} {word} {word}.; Is it {word}, or is it {word}?; Do
    {word} and {word} sound alike?; {word}, {word}, {word}, {word}, {word}, {word}.; Write down {word}, then {word},
    then {word}.; The {word} {word} {word} was {word} {word}.; He whispered {word} {word} and shouted {word} {word}!;
    {word} or {word}?; {word} {word}, {word} {word}, {word} {word}.; I had never heard of {word} {word} or {word}
    {word}.; {word} comes before {word}, and {word} comes after {word}.; {word} {word} {word}!; A {word} of {word}
    {word} {word}.; From {word} to {word}, from {word} to {word}.; {word} is spelled differently from {word} and
    {word}.; {word} with {word} in the {word}, {word} by the {word}.; What is a {word} {word}, and what is a {word}
    {word}?; {word}, the {word} of {word}, {word} {word} {word}.; No {word}, no {word}, and no {word} {word}.
""")
