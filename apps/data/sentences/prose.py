"""Text patterns besides everyday sentences: prose, figures, names, questions, rare words; as in `grammar.py`."""

from __future__ import annotations

from polydraft.apps.data.sentences.grammar import parse_entries

WORDS: dict[str, tuple[str, ...]] = {
    name: parse_entries(text)
    for name, text in {
        "given": """Aaron; Abigail; Albert; Alfred; Amanda; Amy; Andrea; Andrew; Angela; Anita; Anna; Anthony;
            Barbara; Beatrice; Benjamin; Bernard; Beth; Betty; Brian; Bruce; Carl; Carlos; Carmen; Caroline;
            Catherine; Cecil; Christine; Christopher; Cynthia; David; Deborah; Dennis; Donald; Dorothy; Douglas;
            Edith; Edwin; Eleanor; Elizabeth; Ellen; Emily; Eric; Ernest; Esther; Eugene; Florence; Francis;
            Frederick; Gabriel; Geoffrey; Gerald; Gilbert; Harold; Harriet; Helen; Herbert; Howard; Ian; Isabel;
            Jacob; James; Jane; Janet; Jason; Jeffrey; Jennifer; Jeremy; Jessica; Joan; John; Jonathan; Joseph;
            Joshua; Judith; Justin; Kenneth; Lawrence; Leonard; Lillian; Linda; Lucy; Margaret; Marie; Marilyn; Mark;
            Martha; Mary; Matthew; Michael; Michelle; Mildred; Nancy; Nicholas; Norman; Pamela; Patricia; Patrick;
            Philip; Phyllis; Ralph; Raymond; Rebecca; Richard; Roger; Ronald; Rose; Roy; Russell; Ruth; Ryan; Sarah;
            Scott; Sharon; Stanley; Stella; Stephen; Steven; Theodore; Timothy; Tyler; Vincent; Virginia; Vivian;
            Warren; William; Yvonne""",
        "family": """Abbott; Allen; Anderson; Andrews; Armstrong; Arnold; Bailey; Barrett; Bell; Benson; Bishop;
            Black; Blair; Bowman; Boyd; Bradley; Bryant; Burke; Butler; Campbell; Chambers; Chapman; Chavez;
            Christensen; Cohen; Cole; Crawford; Cruz; Cunningham; Daniels; Davidson; Dawson; Dean; Diaz; Dixon;
            Douglas; Duncan; Dunn; Edwards; Elliott; Ellis; Ferguson; Fernandez; Fisher; Fleming; Fletcher; Ford;
            Foster; Fowler; Fox; Franklin; Freeman; Garcia; Gardner; Gibson; Gomez; Gonzalez; Gordon; Graham; Grant;
            Griffin; Hamilton; Hansen; Harper; Harris; Harrison; Hart; Harvey; Hayes; Hernandez; Hicks; Holmes;
            Hopkins; Houston; Hudson; Hughes; Hunt; Hunter; Jackson; Jefferson; Jennings; Johnston; Jones; Jordan;
            Kennedy; Kim; Knight; Lambert; Lawson; Lee; Lincoln; Little; Lopez; Lynch; Marshall; Martinez; Mason;
            Matthews; Mendoza; Meyer; Mills; Montgomery; Morgan; Morrison; Newton; Nguyen; Oliver; Ortiz; Owens;
            Palmer; Patterson; Payne; Perkins; Phillips; Porter; Quinn; Ramirez; Reed; Reyes; Reynolds; Rice; Rivera;
            Roberts; Robinson; Rodriguez; Rose; Ruiz; Russell; Ryan; Sanchez; Schmidt; Schneider; Schultz; Scott;
            Shaw; Simpson; Snyder; Spencer; Stephens; Stevens; Stone; Sullivan; Thompson; Torres; Tucker; Vasquez;
            Wagner; Wallace; Washington; Weaver; Webb; Weber; Webster; Wells; West; Wheeler; White; Williams; Winston;
            Wong; Woods""",
        "town": """Albany; Alexandria; Athens; Austin; Baltimore; Bangkok; Barcelona; Belfast; Bombay; Bristol;
            Budapest; Buffalo; Calcutta; Cambridge; Charleston; Cincinnati; Cleveland; Cologne; Columbus; Copenhagen;
            Detroit; Florence; Frankfurt; Glasgow; Hamburg; Helsinki; Honolulu; Indianapolis; Istanbul; Jakarta;
            Jerusalem; Johannesburg; Kansas City; Las Vegas; Liverpool; Manchester; Manila; Melbourne; Memphis; Milan;
            Milwaukee; Minneapolis; Montreal; Munich; Naples; Nashville; New Orleans; Oakland; Oxford; Pittsburgh;
            Portland; Sacramento; Saint Louis; Salt Lake City; San Diego; Santiago; Savannah; Shanghai; Singapore;
            Tampa; Tucson; Vancouver; Venice; Washington; Zurich""",
        "region": """Africa; Alaska; Arizona; Asia; Belgium; Bolivia; California; Chile; Colombia; Cuba; Denmark;
            England; Ethiopia; Europe; Finland; Florida; Georgia; Hawaii; Indiana; Indonesia; Israel; Jamaica; Kansas;
            Kentucky; Louisiana; Maine; Malaysia; Michigan; Minnesota; Montana; Nebraska; Nepal; Nevada; New Zealand;
            Nigeria; Ohio; Oregon; Pakistan; Pennsylvania; Russia; Siberia; Tennessee; Texas; Utah; Vermont; Vietnam;
            Virginia; Wales; Wisconsin; Wyoming""",
        "person": """{given} {family}; {first} {last}; {given} {last}; {first} {family}; Mr. {family}; Mrs. {family};
            Dr. {family}; Professor {family}; {given}; Captain {last}; Aunt {given}; Uncle {given}; Miss {family}""",
        "land": """the narrow valley; the hills beyond the river; the far side of the lake; the old road; the harbor;
            the edge of the forest; the empty square; the railway line; the orchard; the marshes; the upper terrace;
            the long gray wall; the meadow behind the church; the stone bridge; the deserted beach; the northern
            shore; the steps of the courthouse; the last house in the village; the garden gate; the mouth of
            the cave""",
        "light": """the moon; the evening sun; a thin mist; the smell of wet grass; a pale light; the sound of distant
            bells; the first snow of the year; a cold wind from the sea; the shadow of the mountain; the noise of the
            street; a flock of wild geese; the smoke of a hundred chimneys; a strange silence; the heavy scent of
            lilac; the glow of the furnace; a low murmur of voices; the dust of the road""",
        "moved": """crept across; settled over; rose above; drifted over; hung over; spread slowly across; lay upon;
            vanished behind; came down from; lingered over; poured across; faded from""",
        "idea": """truth; freedom; justice; memory; courage; kindness; patience; ambition; loyalty; curiosity; hope;
            fear; doubt; pride; trust; wisdom; silence; friendship; experience; imagination; progress; sorrow; beauty;
            knowledge; happiness; habit; power; luck; grief; duty""",
        "body": """hand; eyes; face; shoulders; voice; heart; forehead; fingers; mouth; knees; back; head; hair;
            breath""",
        "felt": """trembled; ached; grew cold; went numb; burned; sank; shook a little; had turned white; felt heavy;
            would not stop shaking""",
        "saw": """saw; noticed; remembered; imagined; understood; discovered; suspected; admitted; forgot; regretted;
            realized; explained; insisted; pretended; swore; feared; guessed; believed""",
        "aside": """as far as anyone could tell; to everyone's surprise; in the end; after a long silence; without
            another word; in spite of everything; as a matter of fact; for reasons of {possessive} own; little by
            little; sooner or later; by the time the guests arrived; according to the newspaper; on the whole; at
            first; for the most part; all things considered; one after another; against all advice; to tell the truth;
            now and then""",
        "possessive": "his; her; their; our; my",
        "pronoun": "he; she; they; we; I; nobody; everyone; somebody",
        "material": """copper; iron; marble; granite; leather; silk; cotton; linen; velvet; ivory; bronze; glass;
            clay; bamboo; oak; pine; steel; rubber; wool; wax""",
        "science": """the planet; the glacier; a magnetic field; the nervous system; the atmosphere; a virus; the
            economy; the ocean current; a comet; the immune system; the telescope; an electric motor; a vaccine; the
            continent; the reaction; the earthquake; a satellite; the enzyme; photosynthesis; evaporation; the
            algorithm; the membrane; gravity; the volcano; a battery; the orbit of the moon; the compound;
            the species""",
        "does": """absorbs most of the heat; produces a steady current; expands when it is heated; depends on
            temperature and pressure; moves about {number} kilometers a year; reflects very little light; was first
            described in {year}; contains roughly {percent} oxygen; weakens over time; has been studied since {year};
            consists of three layers; turns once every {number:small} hours; releases energy slowly; changes its
            direction; cannot be seen with the naked eye; doubles in size every {number:small} days; protects us from
            radiation; is measured in degrees""",
        "unit": """miles; kilometers; meters; feet; inches; pounds; kilograms; grams; gallons; liters; ounces; tons;
            hours; minutes; seconds; weeks; months; degrees; watts; volts; acres; pages; votes; people; dollars;
            percent""",
        "street": """Street; Avenue; Road; Lane; Drive; Boulevard; Court; Square""",
        "firm": """{family} and {family}; {family} Brothers; the {town} Herald; {family} Steel; the Bank of {region};
            {town} Airlines; the University of {town}; the {region} Railway Company; {family} and Sons; the {town}
            Museum of Art""",
    }.items()
}

PROSE = parse_entries("""
    {light} {moved} {land}.; {light} {moved} {land}, and {pronoun} {act:past}.; When {pronoun} reached {land}, {light}
    {moved} {land}.; {aside}, {person} {act:past}, although {clause}.; {pronoun} {saw} that {clause}, but {aside}
    {pronoun} said nothing.; There was a {look} {thing} of {material} {lying}, and beside it stood a {look} {thing}.;
    {clause}, said {person}, and {possessive} {body} {felt}.; {person} had never believed in {idea}, yet {aside}
    {pronoun} {act:past}.; {idea} without {idea} is like a {thing} without a {thing}.; It was {idea}, not {idea}, that
    had brought {person} to {land}.; {possessive} {body} {felt}, and {pronoun} {saw} that {clause}.; The {look}
    {animal} lay down beside the {thing} and slept while {light} {moved} {land}.; For {number:small} days they walked
    along {land}, and on the {ordinal} morning {pronoun} {act:past}.; {pronoun} lived in a {look} house of {material}
    at {land}, where {clause}.; {person}, who had once been a {job}, {act:past} {how} and {act:past} again.; Nobody in
    {town} {saw} why {person} {act:past} {past_time}.; {science} {does}.; {science} {does}, and {science} {does}.;
    {science} {does}, which is why it is {quality} to {act}.; In {year}, a {job} from {town} showed that {science}
    {does}.; If {science} {does}, then {idea} will not help us.; The {job} opened the {look} {thing}, took out
    {number:small} {thing:many}, and put them {lying}.; Of all the {job:many} in {region}, only {person} {often}
    {act:third}.; What {pronoun} {saw} at {land} was neither {idea} nor {idea}, but {light}.; The {place} was {look}
    and {look}, with {thing:many} of {material}, and it smelled of {stuff} and {stuff}.; Then, {aside}, the {look} door
    opened, and {person} came in with a {thing} in {possessive} hand.; Long ago, in a {look} village in {region}, there
    lived a {job} who {often} {act:past}.; Between {land} and {land} there was nothing but {material}, dust and
    {idea}.; {aside}, it seemed to {person} that {clause}.; Once the {job:many} had gone, {pronoun} {act:past} {how}.;
    The government has promised to {act}, but critics say that {clause}.; Mix the {stuff} with two cups of {stuff}, add
    the {food:many}, and leave it for {number:small} minutes.; To reach the {place}, turn left at the {place}, cross
    {land}, and follow the signs to {town}.; {subject} {act:past}, {subject} {act:past}, and {light} {moved} {land}.;
    {idea} and {idea} are not the same, though people {often} confuse them.; Whoever {act:third} must {act}, and
    whoever {act:past} has to {act}.; The more {pronoun} {act:past}, the less {pronoun} {saw}.; Not until {past_time}
    did {person} learn that {clause}.
""")
FIGURES = parse_entries("""
    {number} {unit} is not the same as {number} {unit}.; It weighs {decimal} kilograms and costs {money}.; The {thing}
    is {decimal} inches wide and {number:small} inches long.; In {year} there were {number} {job:many} in {region}, and
    in {year} only {number}.; Sales fell by {percent} to {money} in {year}.; Between {year} and {year} the price rose
    from {money} to {money}.; Please call {telephone} before {time} on {date}.; The code is {number}, and the room is
    {number:small}.; The score was {number:small} to {number:small} after {number:small} minutes.; We left at {time},
    arrived at {time}, and paid {money} for the taxi.; {date}, {time}.; From {date} to {date} the {place} is closed.;
    Take {number:small} of these every {number:small} hours, but no more than {number:small} a day.; {number} plus
    {number} is more than {number}.; {number:small} times {number:small} is less than {number}.; {percent} of {number}
    is about {decimal}.; Temperatures between {number:small} and {number} degrees are expected in {town} on {date}.;
    The {ordinal} of {month} is the {ordinal} day of the trip.; Gate {number:small}, row {number:small}, seat
    {number:small}.; His address is {number} {family} {street}, {town}.; The train leaves at {time} and takes
    {number:small} hours and {number} minutes.; About {number} people, or {percent}, voted for {person}.; The river is
    {number} miles long and {decimal} meters deep.; Chapter {number:small}, page {number}, line {number:small}.; My
    account had {money} on {date} and {money} on {date}.; The {ordinal} and the {ordinal} runner finished within
    {decimal} seconds.; Bus {number} runs every {number:small} minutes until {time}.; {telephone} or {telephone}?;
    {number} {unit}, {number} {unit} and {number:small} {unit}.; The building has {number:small} floors, {number}
    windows and {number} doors.
""")
NAMES = parse_entries("""
    {person} met {person} in {town}.; {person} moved from {town} to {town} in {year}.; {given}, {given} and {given}
    {act:past} with {person}.; The letter was signed by {person} of {firm}.; {firm} was founded by {person} and
    {person}.; {person} from {region} {act:past} {past_time}.; Have you met {person}, the {job} from {town}?; {firm}
    will open an office in {town}, {region}.; I used to live on {family} {street}, near {town}.; {person} thanked
    {person}, {person} and everyone at {firm}.; Dear {person}, thank you for your letter.; Yours sincerely, {given}
    {family}.; {person} was elected in {year} and lost to {person} in {year}.; {person}'s brother {given} works for
    {firm}.; They flew from {town} to {town} by way of {region}.; {region}, {region} and {region} signed the treaty.;
    {given} says hello to {given}.; According to {person}, {clause}.; {person} wrote a book about {region}.; The {town}
    train stops in {town} and {town}.
""")
QUESTIONS = parse_entries("""
    Do you know whether {person} {act:past} {past_time}?; What would {person} do if {clause}?; Why does {science}
    matter to us?; Who told {person} that {clause}?; How far is it from {town} to {town}?; How long does it take to
    {act}?; Which of these {thing:many} belongs to {person}?; When did {person} move to {region}?; Where can I find
    {number:small} {thing:many} of {material}?; Is {idea} more important than {idea}?; Aren't you going to {act}
    {future_time}?; Could you tell me where the {place} is, please?; Would it be {quality} to {act} at {time}?; Whose
    {thing} is {lying}?; You didn't {act}, did you?; {subject} will {act} {future_time}, won't they?; Should I {act},
    or should I {act}?; Is it true that {clause}?; What happened at {land} {past_time}?; How many {unit} are there?;
    What does {word} mean?; Did you say {number} or {number}?; Did {pronoun} really {act}?; What if {clause}?; May I
    {act}?; Since when does {person} {act}?
""")
RARE = parse_entries("""
    He talked about {word} and {word} all evening.; The {word} was {look}, and the {word} was {look}.; {person} looked
    up {word} in the dictionary.; There is no {word} in {region}.; She called it {word}, but {pronoun} called it
    {word}.; Too much {word} makes people {mood}.; I read about {word} {past_time}.; {word} is {quality}, {aside}.;
    Without {word} and {word}, {clause}.; The report mentions {word}, {word} and {word}.; Is this {word} or {word}?;
    Their {word} {look} {thing} was {lying}.; My {kin} studied {word} in {town}.; We saw {word} {where}.; It was a
    matter of {word}.; Please explain the word {word}.; {person} wrote {word} on the {thing}.; This {word} comes from
    {region}.; They were {word} and {word}.; Nobody wanted {word} {future_time}.; A {word} {job} {act:past}.; {aside},
    the {word} {moved} {land}.
""")
